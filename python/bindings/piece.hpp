/// A place in a rank's memory, as Python moves it about.
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

/// What was allocated at once.
struct Allocation {
  std::byte* begin;
  size_t bytes;
  size_t guard;                       ///< bytes behind it that belong to nothing else
  std::string dtype;                  ///< of the array that was copied there; empty: any
  std::vector<const void*> of_ranks;  ///< [ranks] the same of all ranks, of shared memory
  uint32_t rank;                      ///< whose it is
};

/// A place in memory that tasks reach. Python moves it about and never looks into it.
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
  /// [ranks] where it lies on all of them; of memory of this rank alone, here.
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
