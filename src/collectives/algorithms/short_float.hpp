/// float16 and bfloat16 as bits; conversions from and to float32 that round to nearest even.
/// Branchless, so that compilers vectorise loops on any machine.
#pragma once

#include <bit>
#include <cstdint>

namespace tokenyard::collectives {

struct BFloat16 {
  uint16_t bits;
  float wide() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static BFloat16 rounded(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const uint32_t nearest = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    // A NaN must not be rounded up into an infinity.
    const bool nan = (wide & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(nan ? (wide >> 16 | 0x40) : nearest)};
  }
};

struct Float16 {
  uint16_t bits;
  float wide() const {
    // A multiplication moves the exponent to float32's range, and normalises subnormals on the way.
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
    const bool special = magnitude >= 0x0f800000;  // infinity or NaN
    const uint32_t wide = special ? (magnitude | 0x7f800000) : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(wide | static_cast<uint32_t>(bits & 0x8000) << 16);
  }
  static Float16 rounded(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = wide & 0x7fffffff;
    const uint32_t sign = wide >> 16 & 0x8000;
    // Below 2^-14 the result is subnormal: adding 0.5 leaves its rounded bits at the bottom.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3f000000;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;  // from 65520 up: infinity
    half = magnitude > 0x7f800000 ? (0x7e00 | (magnitude >> 13 & 0x3ff)) : half;
    return {static_cast<uint16_t>(half | sign)};
  }
};

}  // namespace tokenyard::collectives
