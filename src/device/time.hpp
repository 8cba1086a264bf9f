/// Time as a kernel sees it. Virtual in the simulator.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

DEVICE uint64_t now_ns();      ///< wall time of this device; not comparable between ranks
DEVICE uint64_t cycles();      ///< of this multiprocessor
DEVICE void nap(uint32_t ns);  ///< yields to other threads for about `ns`

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/time.hpp"
#else
#include "device/host/time.hpp"
#endif
