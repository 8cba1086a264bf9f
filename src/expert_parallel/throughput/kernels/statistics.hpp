/// What calls leave behind for people: where their time went, and who was waited for. In memory
/// that host and kernels share, so that nobody has to synchronise to read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::throughput {

/// Moments of a call that a block can note.
enum class Moment : uint32_t {
  begun,      ///< the kernel has started
  counted,    ///< its tokens are counted
  greeted,    ///< every rank has said hello
  known,      ///< the counts of all blocks of all ranks are here
  routed,     ///< its tokens' rows have their places
  moved,      ///< its rows are stored, or have been fetched
  published,  ///< what travels beside its rows is stored
  placed,     ///< received rows that it places by expert have their places
  spread,     ///< it has no more rows to spread to their experts
  finished,   ///< it has told every rank that it is done
  ended,      ///< block 0: everybody else is
};
inline constexpr uint32_t kMoments = 11;

/// Sums over the object's calls: a total on the device, and its copy for the host.
struct Statistics {
  uint64_t* totals;  ///< [local experts + ranks], on the device
  uint64_t* shown;   ///< the same, in memory that the host reads
  uint32_t local_experts, ranks;

  HOST_DEVICE size_t tokens_of(uint32_t local_expert) const { return local_expert; }
  HOST_DEVICE size_t waited_for(uint32_t rank) const { return size_t{local_experts} + rank; }
  HOST_DEVICE size_t count() const { return size_t{local_experts} + ranks; }
};

}  // namespace tokenyard::throughput
