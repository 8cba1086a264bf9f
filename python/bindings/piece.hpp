/// A range of a rank's memory, which Python passes around.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::python {

namespace mk = tokenyard::megakernel;

struct HeldMemory;

/// The allocation that a piece is part of.
struct Allocation {
  std::byte* begin;
  size_t bytes;
  size_t guard;                       ///< bytes behind it that no other allocation uses
  std::string dtype;                  ///< of the array that was copied there; empty: any
  std::vector<const void*> of_ranks;  ///< [ranks] begin on each rank; empty if not shared
  uint32_t rank;                      ///< the rank whose memory it is
};

/// A range of memory that tasks access. Python passes it around and never reads it.
struct Piece {
  std::byte* address;
  size_t bytes;
  std::shared_ptr<HeldMemory> owner;
  std::shared_ptr<const Allocation> allocation;

  Piece at(size_t offset) const {
    if (offset > bytes)
      throw InvalidArgument("offset", fmt::format("at most {}", bytes), fmt::format("{}", offset));
    return {address + offset, bytes - offset, owner, allocation};
  }
  /// Returns its address on every rank [ranks]; of memory that is not shared, only its own.
  std::vector<ConstTensorView> places() const {
    const std::ptrdiff_t offset = address - allocation->begin;
    if (allocation->of_ranks.empty()) return {ConstTensorView::bytes_at(address, bytes)};
    std::vector<ConstTensorView> all;
    for (const void* const begin : allocation->of_ranks)
      all.push_back(
          ConstTensorView::bytes_at(static_cast<const std::byte*>(begin) + offset, bytes));
    return all;
  }
};

}  // namespace tokenyard::python
