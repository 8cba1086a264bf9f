/// Statistics of calls: where their time went, and which ranks they waited for. In memory shared by
/// host and kernels, so that reading needs no synchronization.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::throughput {

/// Moments of a call that a block records.
enum class Moment : uint32_t {
  begun,      ///< the kernel has started
  counted,    ///< tokens are counted
  greeted,    ///< every rank's ready words have arrived
  known,      ///< the counts of all blocks of all ranks have arrived
  routed,     ///< tokens have their final rows
  moved,      ///< rows are stored, or fetched
  published,  ///< metadata is stored
  placed,     ///< received rows that this block places by expert have their places
  spread,     ///< no rows are left to spread to their experts
  finished,   ///< the block has signalled every rank that it has finished
  ended,      ///< block 0: all other blocks have finished
};
inline constexpr uint32_t kMoments = 11;

/// Sums over the object's calls: totals on the device, with a copy for the host.
struct Statistics {
  uint64_t* totals;  ///< [local experts + ranks], on the device
  uint64_t* shown;   ///< the same, in memory that the host reads
  uint32_t local_experts, ranks;

  TOKENYARD_HOST_DEVICE size_t tokens_of(uint32_t local_expert) const { return local_expert; }
  TOKENYARD_HOST_DEVICE size_t waited_for(uint32_t rank) const {
    return size_t{local_experts} + rank;
  }
  TOKENYARD_HOST_DEVICE size_t count() const { return size_t{local_experts} + ranks; }
};

}  // namespace tokenyard::throughput
