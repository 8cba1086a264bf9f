/// A kernel that occupies its multiprocessors until the host releases it.
#pragma once

#include "device/device.hpp"

namespace tokenyard::megakernel {

struct HoldParams {
  const uint32_t* released;  ///< host-visible
  uint32_t* holding;         ///< host-visible: set once it runs
  WaitContext wait_context;
};
TOKENYARD_DECLARE_KERNEL(hold_kernel, HoldParams);

}  // namespace tokenyard::megakernel
