#pragma once

#include <bit>

#include "device/numbers.hpp"

namespace tokenyard {

TOKENYARD_DEVICE float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// cvt.f32.f16 d, a;
TOKENYARD_DEVICE float to_float(Float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

// cvt.rn.f16x2.e4m3x2 d, a;   then the lower half to f32. Both steps are exact.
TOKENYARD_DEVICE float to_float(Float8E4M3 value) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(value.bits)));
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(static_cast<uint16_t>(halves)));
  return result;
}

// cvt.f32.f16 d, a;   E5M2 is the upper byte of an IEEE binary16.
TOKENYARD_DEVICE float to_float(Float8E5M2 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(static_cast<uint16_t>(value.bits << 8)));
  return result;
}

TOKENYARD_DEVICE float to_float(ScaleE8M0 value) {
  constexpr uint32_t kSmallest = 0x00400000;  // 2^-127, a subnormal
  constexpr uint32_t kNan = 0x7fffffff;
  const uint32_t bits = value.bits == 0      ? kSmallest
                        : value.bits == 0xff ? kNan
                                             : static_cast<uint32_t>(value.bits) << 23;
  return std::bit_cast<float>(bits);
}

// cvt.rn.bf16.f32 d, a;
TOKENYARD_DEVICE BFloat16 to_bfloat16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {bits};
}

// cvt.rn.bf16x2.f32 d, a, b;   a becomes the upper half.
TOKENYARD_DEVICE uint32_t to_bfloat16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// cvt.rn.f16x2.f32 d, a, b;   a becomes the upper half.
TOKENYARD_DEVICE uint32_t to_float16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// cvt.rn.satfinite.e4m3x2.f32 d, a, b;   a becomes the upper byte.
TOKENYARD_DEVICE Float8E4M3 to_float8_e4m3(float value) {
  uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(value));
  return {static_cast<uint8_t>(bits)};
}

// cvt.rn.satfinite.e5m2x2.f32 d, a, b;
TOKENYARD_DEVICE Float8E5M2 to_float8_e5m2(float value) {
  uint16_t bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(value));
  return {static_cast<uint8_t>(bits)};
}

TOKENYARD_DEVICE uint32_t to_float8_e4m3_quad(float a, float b, float c, float d) {
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | static_cast<uint32_t>(high) << 16;
}

// cvt.rp.satfinite.ue8m0x2.f32 needs sm_100; integer operations give the same result on every GPU.
TOKENYARD_DEVICE ScaleE8M0 to_scale_e8m0(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (bits <= 0x00400000) return {0};  // 2^-127 and below
  const uint32_t exponent = (bits + 0x007fffff) >> 23;
  return {static_cast<uint8_t>(exponent < 0xfe ? exponent : 0xfe)};
}

}  // namespace tokenyard
