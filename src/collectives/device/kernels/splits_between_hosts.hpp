/// all_to_all with a size per pair of ranks, between hosts. See splits.hpp and between_hosts.hpp.
///
/// 1. Each rank's sizes travel with its greeting. Rail peers store them in the windows of their
///    host's ranks before they pass the call word on.
/// 2. The last warp of each block waits for the words of all ranks, and compares sizes as
/// splits.hpp
///    does, or as messages.hpp, 5, if the hosts know them.
/// 3. It then stores where this rank's parts lie, and finds the longest message, which decides on
///    the chunks. The block's other warps wait for that, and move messages as any other movement.
#pragma once

#include "collectives/device/kernels/between_hosts.hpp"
#include "collectives/device/kernels/splits.hpp"

namespace tokenyard::device_collectives {

/// Slots of a world in which hosts know splits: they travel as parameters.
inline constexpr uint32_t kKnownSplitsMax = 128;

struct SplitsBetweenParams {
  BetweenHostsParams between;
  SplitArrays arrays;                ///< `splits`: null if the host knows them
  uint64_t* offsets;                 ///< [channels][kRoles][ranks] scratch memory
  CountWord known[kKnownSplitsMax];  ///< [slots] bytes for, and from, each
};
static_assert(sizeof(SplitsBetweenParams) <= 4096, "Parameters of a kernel have so much room.");

TOKENYARD_DECLARE_KERNEL(splits_between_hosts_kernel, SplitsBetweenParams);

}  // namespace tokenyard::device_collectives
