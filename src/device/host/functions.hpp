#pragma once

#include <cmath>

#include "device/functions.hpp"

namespace tokenyard {

DEVICE float exponential(float x) {
  return std::exp(x);
}
DEVICE float sine(float x) {
  return std::sin(x);
}
DEVICE float cosine(float x) {
  return std::cos(x);
}
DEVICE float reciprocal_square_root(float x) {
  return 1 / std::sqrt(x);
}
DEVICE int64_t nearest_integer(float x) {
  return std::llrint(x);
}

}  // namespace tokenyard
