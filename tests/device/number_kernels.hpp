/// A kernel that converts to and from every small format.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

struct Numbers {
  uint16_t bf16;
  uint32_t bf16_pair, fp16_pair;
  uint8_t e4m3, e5m2, e8m0;
  uint32_t e4m3_quad;
};
struct NumbersParams {
  uint32_t count;
  const float* values;  ///< [count]
  Numbers* made;        ///< [count] codes of `values`
  float* back;          ///< [5 * count] to_float of the codes in `made`
};

TOKENYARD_DEVICE Numbers numbers_of(float value) {
  return {to_bfloat16(value).bits,
          to_bfloat16_pair(value, -value),
          to_float16_pair(value, -value),
          to_float8_e4m3(value).bits,
          to_float8_e5m2(value).bits,
          to_scale_e8m0(value).bits,
          to_float8_e4m3_quad(value, -value, value / 2, 3)};
}

TOKENYARD_DEVICE void numbers_body(const NumbersParams& params) {
  const uint32_t stride = grid::blocks() * block::threads();
  for (uint32_t i = block::index() * block::threads() + thread::index(); i < params.count;
       i += stride) {
    const Numbers made = numbers_of(params.values[i]);
    params.made[i] = made;
    params.back[5 * i + 0] = to_float(BFloat16{made.bf16});
    params.back[5 * i + 1] = to_float(Float8E4M3{made.e4m3});
    params.back[5 * i + 2] = to_float(Float8E5M2{made.e5m2});
    params.back[5 * i + 3] = to_float(ScaleE8M0{made.e8m0});
    params.back[5 * i + 4] = to_float(Float16{static_cast<uint16_t>(made.fp16_pair)});
  }
}

TOKENYARD_DEFINE_KERNEL(numbers_kernel, numbers_body, NumbersParams, NoShared, 64)

}  // namespace tokenyard::testing
