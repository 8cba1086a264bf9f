/// BF16 rows to FP8 with a scale for each group of channels, before a dispatch that was asked for
/// it. No other rank takes part.
///
/// A group's scale is its largest magnitude (1e-4 if that is less) over 448, and for packed scales
/// the smallest power of two not below; the values are those of the row over the scale, rounded to
/// nearest even.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "device/wait.hpp"

namespace tokenyard::throughput {

struct CastParams {
  uint32_t tokens, hidden;
  uint32_t scale_channels;  ///< a group: 16, 32, ... 512; divides hidden
  bool packed;              ///< exponents of 8 bits, four to a word, instead of fp32 factors
  uint32_t scale_words;     ///< a row
  const std::byte* x;       ///< [tokens, hidden] bf16
  std::byte* to;            ///< [tokens, hidden] fp8 e4m3
  std::byte* scales;        ///< [tokens, scale_words] words
  WaitContext wait_context;
};

inline constexpr uint32_t kChannelsALane = 16;  ///< two pieces of BF16 become one of FP8
inline constexpr uint32_t kCastThreadsMax = 512;

DECLARE_KERNEL(cast_rows_kernel, CastParams);

}  // namespace tokenyard::throughput
