/// Threads that share out a loop among them: i = index, index + size, ...
#pragma once

#include "device/device.hpp"

namespace tokenyard::throughput {

struct Crew {
  uint32_t index, size;

  DEVICE static Crew of_block() { return {thread::index(), block::threads()}; }
  DEVICE static Crew of_warp() { return {warp::lane(), kWarpLanes}; }
};

}  // namespace tokenyard::throughput
