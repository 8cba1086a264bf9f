/// Casts BF16 rows to FP8 with one scale per group of channels, before a dispatch that asks for it.
/// Involves no other rank.
///
/// A group's scale is its largest magnitude (at least 1e-4) over 448; packed scales use the
/// smallest power of two not below that. Values are the row's over the scale, rounded to nearest
/// even.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "device/wait.hpp"

namespace tokenyard::throughput {

struct CastParams {
  uint32_t tokens, hidden;
  uint32_t scale_channels;  ///< channels per group: 16, 32, ... 512; divides hidden
  bool packed;              ///< 8-bit exponents, four per word, instead of fp32 factors
  uint32_t scale_words;     ///< per row
  const std::byte* x;       ///< [tokens, hidden] bf16
  std::byte* to;            ///< [tokens, hidden] fp8 e4m3
  std::byte* scales;        ///< [tokens, scale_words] words
  WaitContext wait_context;
};

inline constexpr uint32_t kChannelsALane = 16;  ///< two pieces of BF16 become one of FP8
inline constexpr uint32_t kCastThreadsMax = 512;

TOKENYARD_DECLARE_KERNEL(cast_rows_kernel, CastParams);

}  // namespace tokenyard::throughput
