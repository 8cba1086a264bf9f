#pragma once

#include <cmath>

#include "device/functions.hpp"

namespace tokenyard {

TOKENYARD_DEVICE float exponential(float x) {
  return std::exp(x);
}
TOKENYARD_DEVICE float sine(float x) {
  return std::sin(x);
}
TOKENYARD_DEVICE float cosine(float x) {
  return std::cos(x);
}
TOKENYARD_DEVICE float reciprocal_square_root(float x) {
  return 1 / std::sqrt(x);
}
TOKENYARD_DEVICE int64_t nearest_integer(float x) {
  return std::llrint(x);
}
TOKENYARD_DEVICE float multiply_add(float a, float b, float c) {
  return std::fma(a, b, c);
}
TOKENYARD_DEVICE double multiply_add(double a, double b, double c) {
  return std::fma(a, b, c);
}

}  // namespace tokenyard
