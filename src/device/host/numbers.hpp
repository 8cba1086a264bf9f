#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "device/numbers.hpp"

namespace tokenyard {

namespace host_body {

/// A format of sign, exponent and `mantissa` bits. Codes above `largest` are infinities and NaN.
struct SmallFormat {
  int mantissa, bias;
  uint8_t largest;
};
inline constexpr SmallFormat kE4M3{.mantissa = 3, .bias = 7, .largest = 0x7e};
inline constexpr SmallFormat kE5M2{.mantissa = 2, .bias = 15, .largest = 0x7b};

/// Rounds to nearest even, and saturates.
inline uint8_t encode(SmallFormat format, float value) {
  if (std::isnan(value)) return 0x7f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isinf(value)) return sign | format.largest;
  if (value == 0) return sign;
  const double size = std::fabs(static_cast<double>(value));
  const int exponent = std::max(std::ilogb(size), 1 - format.bias);
  // In units of the last place, which double represents exactly, so ties stay ties. Subnormals keep
  // the smallest exponent; a mantissa that rounds up to the next power of two carries into the
  // exponent by itself.
  const double units = std::nearbyint(std::ldexp(size, format.mantissa - exponent));
  const double code = std::ldexp(exponent + format.bias - 1, format.mantissa) + units;
  return sign | (code > format.largest ? format.largest : static_cast<uint8_t>(code));
}

inline float decode(SmallFormat format, uint8_t code) {
  const int size = code & 0x7f, field = size >> format.mantissa;
  const int fraction = size & ((1 << format.mantissa) - 1);
  float value;
  if (size > format.largest) {
    const bool infinite = format.mantissa == 2 && fraction == 0;
    value =
        infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (field == 0) {
    value = std::ldexp(static_cast<float>(fraction), 1 - format.bias - format.mantissa);
  } else {
    value = std::ldexp(static_cast<float>(fraction + (1 << format.mantissa)),
                       field - format.bias - format.mantissa);
  }
  return code & 0x80 ? -value : value;
}

}  // namespace host_body

TOKENYARD_DEVICE float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
TOKENYARD_DEVICE float to_float(Float16 value) {
  const uint32_t size = value.bits & 0x7fff;
  // Rebiases the exponent by a multiplication, which also normalises subnormal numbers.
  float result = std::bit_cast<float>(size << 13) * 0x1p112f;
  if (size >= 0x7c00) result = std::bit_cast<float>(size << 13 | 0x7f800000);
  return value.bits & 0x8000 ? -result : result;
}
TOKENYARD_DEVICE float to_float(Float8E4M3 value) {
  return host_body::decode(host_body::kE4M3, value.bits);
}
TOKENYARD_DEVICE float to_float(Float8E5M2 value) {
  return host_body::decode(host_body::kE5M2, value.bits);
}
TOKENYARD_DEVICE float to_float(ScaleE8M0 value) {
  if (value.bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, value.bits - 127);
}

TOKENYARD_DEVICE BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
TOKENYARD_DEVICE uint32_t to_bfloat16_pair(float low, float high) {
  return to_bfloat16(low).bits | static_cast<uint32_t>(to_bfloat16(high).bits) << 16;
}
namespace host_body {

inline uint16_t to_float16(float value) {
  if (std::isnan(value)) return 0x7fff;
  constexpr uint16_t kInfinity = 0x7c00;
  const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 & 0x8000);
  const float size = std::fabs(value);
  if (size >= 65520) return sign | kInfinity;  // From the tie above the largest finite number on.
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), -14);
  // In units of the last place, exactly, so ties stay ties.
  const double units = std::nearbyint(std::ldexp(static_cast<double>(size), 10 - exponent));
  return sign | static_cast<uint16_t>(std::ldexp(exponent + 14, 10) + units);
}

}  // namespace host_body

TOKENYARD_DEVICE uint32_t to_float16_pair(float low, float high) {
  return host_body::to_float16(low) | static_cast<uint32_t>(host_body::to_float16(high)) << 16;
}
TOKENYARD_DEVICE Float8E4M3 to_float8_e4m3(float value) {
  return {host_body::encode(host_body::kE4M3, value)};
}
TOKENYARD_DEVICE Float8E5M2 to_float8_e5m2(float value) {
  return {host_body::encode(host_body::kE5M2, value)};
}
TOKENYARD_DEVICE uint32_t to_float8_e4m3_quad(float a, float b, float c, float d) {
  return to_float8_e4m3(a).bits | to_float8_e4m3(b).bits << 8 | to_float8_e4m3(c).bits << 16 |
         static_cast<uint32_t>(to_float8_e4m3(d).bits) << 24;
}
TOKENYARD_DEVICE ScaleE8M0 to_scale_e8m0(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (bits <= 0x00400000) return {0};  // 2^-127 and below
  const uint32_t exponent = (bits + 0x007fffff) >> 23;
  return {static_cast<uint8_t>(exponent < 0xfe ? exponent : 0xfe)};
}

}  // namespace tokenyard
