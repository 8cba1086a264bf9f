/// All-gathers one plain value per rank.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "fabric/bootstrap.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

/// A type that ranks of one build may send as raw bytes. (No bool: most bytes are no valid bool.)
template <class T>
concept PlainValue = std::is_trivially_copyable_v<T> && !std::same_as<T, bool>;

/// Decodes the bytes of each rank of `ranks`, a World or a Bootstrap, and returns the values,
/// [ranks]; an absent rank's is T{}. Throws InvalidArgument{what, expected, seen, rank} for the
/// first rank that sent another number of bytes, as another build may.
template <PlainValue T>
std::vector<T> values_of(const auto& ranks, const std::vector<std::vector<std::byte>>& everybody,
                         const std::string& what) {
  std::vector<T> values(everybody.size());
  for (uint32_t rank = 0; rank < everybody.size(); ++rank) {
    if (!is_present(ranks, rank)) continue;
    const std::vector<std::byte>& theirs = everybody[rank];
    if (theirs.size() != sizeof(T))
      throw InvalidArgument(what, fmt::format("{} bytes", sizeof(T)),
                            fmt::format("{} bytes", theirs.size()), rank);
    std::memcpy(&values[rank], theirs.data(), sizeof(T));
  }
  return values;
}

/// Collective. Gathers `mine` from every rank and returns the values, [ranks]; an absent rank's is
/// T{}. `ranks` is a World, or a Bootstrap followed by the deadline `until`. Throws what its
/// all_gather and `values_of` throw.
template <PlainValue T>
std::vector<T> gather(auto& ranks, const T& mine, const std::string& what, auto... until) {
  return values_of<T>(ranks, ranks.all_gather(std::as_bytes(std::span(&mine, 1)), what, until...),
                      what);
}

}  // namespace tokenyard
