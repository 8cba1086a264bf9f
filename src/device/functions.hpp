/// Elementary functions of floats. Within a few units of the last place of each other on hosts and
/// GPUs, not the same bits.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

DEVICE float exponential(float x);
DEVICE float sine(float x);
DEVICE float cosine(float x);
DEVICE float reciprocal_square_root(float x);
/// The nearest integer, halves to even; |x| < 2^63.
DEVICE int64_t nearest_integer(float x);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/functions.hpp"
#else
#include "device/host/functions.hpp"
#endif
