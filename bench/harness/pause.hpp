/// A kernel that holds a stream for a while, so that what is enqueued behind it starts without a
/// gap and at about the same moment on every rank.
#pragma once

#include "device/kernel.hpp"

namespace tokenyard::bench {

struct PauseParams {
  uint32_t ns;
};

DECLARE_KERNEL(pause_kernel, PauseParams);

}  // namespace tokenyard::bench
