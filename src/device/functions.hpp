/// Elementary functions of floats. Results on hosts and GPUs agree to within a few units in the
/// last place, but not bit for bit, except where a function says so.
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
/// Return a * b + c, rounded once: the same bits everywhere.
TOKENYARD_DEVICE float multiply_add(float a, float b, float c);
TOKENYARD_DEVICE double multiply_add(double a, double b, double c);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/functions.hpp"
#else
#include "device/host/functions.hpp"
#endif
