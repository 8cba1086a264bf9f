/// One plain value of each rank: what an all-gather of bytes is mostly for.
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

#include "tokenyard/error.hpp"

namespace tokenyard {

/// What ranks of one build may send as it lies in memory. (Not every byte is a flag.)
template <class T>
concept PlainValue = std::is_trivially_copyable_v<T> && !std::same_as<T, bool>;

/// [ranks] what the bytes of each are. Throws InvalidArgument{what, expected, seen, rank} naming
/// the first rank that sent another number of bytes, as one of another build may.
template <PlainValue T>
std::vector<T> values_of(const std::vector<std::vector<std::byte>>& everybody,
                         const std::string& what) {
  std::vector<T> values(everybody.size());
  for (uint32_t rank = 0; rank < everybody.size(); ++rank) {
    const std::vector<std::byte>& theirs = everybody[rank];
    if (theirs.size() != sizeof(T))
      throw InvalidArgument(what, fmt::format("{} bytes", sizeof(T)),
                            fmt::format("{} bytes", theirs.size()), rank);
    std::memcpy(&values[rank], theirs.data(), sizeof(T));
  }
  return values;
}

/// Collective: [ranks] the value of each. `ranks`: a World; or a Bootstrap, and `until` when.
/// Throws what its all_gather throws, and what `values_of` does.
template <PlainValue T>
std::vector<T> gather(auto& ranks, const T& mine, const std::string& what, auto... until) {
  return values_of<T>(ranks.all_gather(std::as_bytes(std::span(&mine, 1)), what, until...), what);
}

}  // namespace tokenyard
