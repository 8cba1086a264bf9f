#pragma once

#include "device/functions.hpp"

namespace tokenyard {

TOKENYARD_DEVICE float exponential(float x) {
  return expf(x);
}
TOKENYARD_DEVICE float sine(float x) {
  return sinf(x);
}
TOKENYARD_DEVICE float cosine(float x) {
  return cosf(x);
}
TOKENYARD_DEVICE float reciprocal_square_root(float x) {
  return rsqrtf(x);
}
TOKENYARD_DEVICE int64_t nearest_integer(float x) {
  return __float2ll_rn(x);
}
TOKENYARD_DEVICE float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
TOKENYARD_DEVICE double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

}  // namespace tokenyard
