/// A kernel that keeps its multiprocessors until the host lets it go.
#pragma once

#include "device/device.hpp"

namespace tokenyard::megakernel {

struct HoldParams {
  const uint32_t* released;  ///< host-visible
  uint32_t* holding;         ///< host-visible: set once it runs
  WaitContext wait_context;
};
DECLARE_KERNEL(hold_kernel, HoldParams);

}  // namespace tokenyard::megakernel
