#pragma once

#include "bench/harness/pause.hpp"
#include "device/device.hpp"

namespace tokenyard::bench {

TOKENYARD_DEVICE void pause_for(const PauseParams& params) {
  // Bounded by its own clock, so it needs no deadline.
  for (const uint64_t start = now_ns(); now_ns() - start < params.ns;) nap(200);
}

TOKENYARD_DEFINE_KERNEL(pause_kernel, pause_for, PauseParams, NoShared, 32)

}  // namespace tokenyard::bench
