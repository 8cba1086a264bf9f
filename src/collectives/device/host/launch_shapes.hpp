/// Blocks and warps of launches.
#pragma once

#include <cstdint>

#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "device/warp.hpp"

namespace tokenyard::device_collectives {

static_assert(kRingsThreadsMax == kDirectThreadsMax && kRingsThreadsMax == kMessagesThreadsMax);
/// Chunks of Options::chunk_bytes in a slot of a ring between hosts, on a GPU: the warps of a block
/// share it.
inline constexpr uint32_t kChunksOfSlot = 8;
/// Blocks of a launch on a host, at most.
inline constexpr uint32_t kHostBlocksMax = 2;
inline constexpr uint32_t kRingsWarps = kRingsThreadsMax / kWarpLanes, kHostRingsWarps = 3;

}  // namespace tokenyard::device_collectives
