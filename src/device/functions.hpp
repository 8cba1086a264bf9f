/// Elementary functions of floats. Results on hosts and GPUs agree to within a few units in the
/// last place, but not bit for bit.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

TOKENYARD_DEVICE float exponential(float x);
TOKENYARD_DEVICE float sine(float x);
TOKENYARD_DEVICE float cosine(float x);
TOKENYARD_DEVICE float reciprocal_square_root(float x);
/// Returns the nearest integer, ties to even; |x| < 2^63.
TOKENYARD_DEVICE int64_t nearest_integer(float x);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/functions.hpp"
#else
#include "device/host/functions.hpp"
#endif
