#pragma once

#include "device/functions.hpp"

namespace tokenyard {

DEVICE float exponential(float x) {
  return expf(x);
}
DEVICE float sine(float x) {
  return sinf(x);
}
DEVICE float cosine(float x) {
  return cosf(x);
}
DEVICE float reciprocal_square_root(float x) {
  return rsqrtf(x);
}
DEVICE int64_t nearest_integer(float x) {
  return __float2ll_rn(x);
}

}  // namespace tokenyard
