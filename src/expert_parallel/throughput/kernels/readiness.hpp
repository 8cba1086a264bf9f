/// Words that say which of a dispatch's rows have arrived, for kernels of the same GPU that start
/// before all have.
///
///     sources[rank]    0, then 1 once all rows of that source rank are here
///     experts[expert]  0, then 1 once all rows that name that expert of this rank are
///
/// They belong to one call, and are cleared in the order of its stream before it. Whoever reads a 1
/// with acquire at gpu scope may read those rows, and what travels beside them; by bulk copies
/// after a fence of its own, since rows come through ordinary accesses and others'. Words never go
/// back to 0, and a call that fails leaves those at 0 that it did not reach: so a wait for them
/// needs a deadline.
///
/// Block 0 of the receiving rank, which waits for everybody's blocks anyway, writes them: who sent
/// the rows does not know of it, and it costs the call a few accesses to its own memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::throughput {

struct Readiness {
  uint32_t* words;  ///< on the device; null if nobody asked
  uint32_t ranks, local_experts;

  HOST_DEVICE uint32_t& source(uint32_t rank) const { return words[rank]; }
  HOST_DEVICE uint32_t& expert(uint32_t local_expert) const { return words[ranks + local_expert]; }
  /// Blocks of a source that have finished.
  HOST_DEVICE uint32_t& finished(uint32_t rank) const {
    return words[ranks + local_experts + rank];
  }
  /// Not 0 if rows of that source name that expert.
  HOST_DEVICE uint32_t& named(uint32_t rank, uint32_t local_expert) const {
    return words[2 * ranks + local_experts + rank * local_experts + local_expert];
  }
  HOST_DEVICE size_t bytes() const {
    return (size_t{2} * ranks + size_t{ranks + 1} * local_experts) * sizeof(uint32_t);
  }
};

}  // namespace tokenyard::throughput
