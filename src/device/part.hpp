/// Declares which part of a kernel's work a thread does, so that a host can check the accesses of
/// each part (AccessGuard).
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

/// Marks the calling thread as working on `part` from here on. No-op on a GPU.
TOKENYARD_DEVICE void begin_part(uint32_t part);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/part.hpp"
#else
#include "device/host/part.hpp"
#endif
