/// Small floating-point formats. Host and GPU convert to the same bits, in ties too.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

/// bfloat16 as its bits. Conversions turn any NaN into 0x7fff.
struct BFloat16 {
  uint16_t bits;
};
/// IEEE 754 binary16 as its bits. Conversions overflow to infinity, and turn any NaN into 0x7fff.
struct Float16 {
  uint16_t bits;
};
/// FP8 E4M3 (no infinities, largest 448) and E5M2 as their bits. Conversions saturate; NaN is 0x7f.
struct Float8E4M3 {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
};
/// The power of two 2^(bits - 127), the packed format of scales (UE8M0). 0xff is NaN.
struct ScaleE8M0 {
  uint8_t bits;
};

TOKENYARD_DEVICE float to_float(BFloat16 value);
TOKENYARD_DEVICE float to_float(Float16 value);
TOKENYARD_DEVICE float to_float(Float8E4M3 value);
TOKENYARD_DEVICE float to_float(Float8E5M2 value);
TOKENYARD_DEVICE float to_float(ScaleE8M0 value);
TOKENYARD_DEVICE BFloat16 to_bfloat16(float value);  ///< round to nearest even
/// Convert two values at once, `low` into the lower half.
TOKENYARD_DEVICE uint32_t to_bfloat16_pair(float low, float high);
TOKENYARD_DEVICE uint32_t to_float16_pair(float low, float high);
TOKENYARD_DEVICE Float8E4M3 to_float8_e4m3(float value);
TOKENYARD_DEVICE Float8E5M2 to_float8_e5m2(float value);
/// Converts four values at once, the first into the lowest byte.
TOKENYARD_DEVICE uint32_t to_float8_e4m3_quad(float a, float b, float c, float d);
/// Returns the smallest power of two not below `value`, which is positive and finite.
TOKENYARD_DEVICE ScaleE8M0 to_scale_e8m0(float value);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/numbers.hpp"
#else
#include "device/host/numbers.hpp"
#endif
