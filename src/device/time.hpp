/// Time as a kernel sees it; virtual in the simulator.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

TOKENYARD_DEVICE uint64_t now_ns();      ///< this device's wall time; not comparable between ranks
TOKENYARD_DEVICE uint64_t cycles();      ///< this multiprocessor's cycle counter
TOKENYARD_DEVICE void nap(uint32_t ns);  ///< yields to other threads for about `ns`

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/time.hpp"
#else
#include "device/host/time.hpp"
#endif
