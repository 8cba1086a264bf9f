/// LogFMT: ten bits per value, a sign and the magnitude's position on a logarithmic scale that 128
/// channels share.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kLogFmtBits = 10, kLogFmtMask = (1u << kLogFmtBits) - 1;
inline constexpr uint32_t kLogFmtSign = 1u << (kLogFmtBits - 1);
/// Positions on the scale, from 1; 0 encodes zero. The largest code is unused: any thirty-two bits
/// hold two whole codes, so no word of codes is all ones, as empty staging is.
inline constexpr uint32_t kLogFmtPlaces = kLogFmtSign - 2;
static_assert((kLogFmtSign | kLogFmtPlaces) < kLogFmtMask);
/// Most octaves of a scale; smaller values become its smallest value, or zero.
inline constexpr float kLogFmtOctaves = 32;
/// 16-byte pieces per 256 channels: codes, and one piece of scales.
inline constexpr uint32_t kLogFmtPiecesAChunk = 256 * kLogFmtBits / 128 + 1;

/// Range of the values of a group.
struct LogRange {
  float largest = 0, smallest = INFINITY;  ///< magnitudes; `smallest` excludes zeros
  uint32_t broken = 0;                     ///< whether a value is infinite or NaN

  TOKENYARD_HOST_DEVICE void include(float value) {
    const float size = std::fabs(value);
    if (!(size < INFINITY)) broken = 1;
    if (size == 0) return;
    largest = std::fmax(largest, size);
    smallest = std::fmin(smallest, size);
  }
};

/// Position p represents 2^(low + (p - 1) * step). With 32 octaves on 510 positions, neighbours
/// differ by 4.4 %, so the error is at most 2.2 %; with 20 octaves, as most rows have, 1.4 %.
struct LogScale {
  float low, step;

  TOKENYARD_HOST_DEVICE static LogScale of(const LogRange& range) {
    // One NaN or infinity makes the whole group NaN.
    if (range.broken != 0) return {std::bit_cast<float>(0x7fc00000u), 0};
    if (range.largest == 0) return {0, 0};
    const float high = std::log2(range.largest);
    const float low = std::fmax(std::log2(range.smallest), high - kLogFmtOctaves);
    return {low, (high - low) / static_cast<float>(kLogFmtPlaces - 1)};
  }
  TOKENYARD_HOST_DEVICE uint32_t encode(float value) const {
    if (value == 0) return 0;
    const uint32_t sign = std::bit_cast<uint32_t>(value) >> 31 != 0 ? kLogFmtSign : 0;
    if (!(step > 0)) return sign | 1;
    const float place = std::rint((std::log2(std::fabs(value)) - low) / step);
    if (place < -1 / step) return 0;  // Less than half of the smallest.
    return sign | (1 + static_cast<uint32_t>(std::fmin(std::fmax(place, 0.0f),
                                                       static_cast<float>(kLogFmtPlaces - 1))));
  }
  TOKENYARD_HOST_DEVICE float decode(uint32_t code) const {
    const uint32_t place = code & (kLogFmtSign - 1);
    if (place == 0) return 0;
    const float size = std::exp2(low + static_cast<float>(place - 1) * step);
    return (code & kLogFmtSign) != 0 ? -size : size;
  }
};

}  // namespace tokenyard::low_latency
