/// A kernel that delays a stream, so that work enqueued behind it starts without gaps and at about
/// the same time on every rank.
#pragma once

#include "device/kernel.hpp"

namespace tokenyard::bench {

struct PauseParams {
  uint32_t ns;
};

TOKENYARD_DECLARE_KERNEL(pause_kernel, PauseParams);

}  // namespace tokenyard::bench
