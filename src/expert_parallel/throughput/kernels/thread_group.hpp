/// Threads that share a loop: i = index, index + size, ...
#pragma once

#include "device/device.hpp"

namespace tokenyard::throughput {

struct ThreadGroup {
  uint32_t index, size;

  TOKENYARD_DEVICE static ThreadGroup of_block() { return {thread::index(), block::threads()}; }
  TOKENYARD_DEVICE static ThreadGroup of_warp() { return {warp::lane(), kWarpLanes}; }
};

}  // namespace tokenyard::throughput
