/// Words that tell kernels on the same GPU which rows of a dispatch have arrived, so that they can
/// start before all rows have.
///
///     sources[rank]    0, then 1 once all rows of that source rank have arrived; of an absent
///                      rank's none come
///     experts[expert]  0, then 1 once all rows for that expert of this rank have arrived
///
/// The words belong to one call; they are cleared before it, in stream order. A reader that
/// acquires a 1 at gpu scope may read those rows and their metadata; before bulk copies it also
/// needs an async-proxy fence, because the rows were written through the generic proxy and by
/// others' copies. Words never return to 0, and a failed call leaves the words that it did not
/// reach at 0, so a wait for them needs a deadline.
///
/// Block 0 of the receiving rank writes them, since it waits for all blocks anyway: senders are not
/// involved, and the call pays for a few accesses to its own memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::throughput {

struct Readiness {
  uint32_t* words;  ///< on the device; null if the caller did not ask for them
  uint32_t ranks, local_experts;

  TOKENYARD_HOST_DEVICE uint32_t& source(uint32_t rank) const { return words[rank]; }
  TOKENYARD_HOST_DEVICE uint32_t& expert(uint32_t local_expert) const {
    return words[ranks + local_expert];
  }
  /// Blocks of a source that have finished.
  TOKENYARD_HOST_DEVICE uint32_t& finished(uint32_t rank) const {
    return words[ranks + local_experts + rank];
  }
  /// Nonzero if rows of that source use that expert.
  TOKENYARD_HOST_DEVICE uint32_t& named(uint32_t rank, uint32_t local_expert) const {
    return words[2 * ranks + local_experts + rank * local_experts + local_expert];
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const {
    return (size_t{2} * ranks + size_t{ranks + 1} * local_experts) * sizeof(uint32_t);
  }
};

}  // namespace tokenyard::throughput
