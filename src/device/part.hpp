/// Which part of a kernel's work a thread does: for hosts that watch what each part touches
/// (AccessGuard).
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

/// From here on the calling thread works on `part`. Nothing on a GPU.
DEVICE void begin_part(uint32_t part);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/part.hpp"
#else
#include "device/host/part.hpp"
#endif
