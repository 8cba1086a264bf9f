/// Prepares the pieces of a token's unit for transfer. A lane holds the channels of one piece;
/// eight lanes of an FP8 unit share a scale.
#pragma once

#include <algorithm>
#include <cmath>

#include "device/device.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"

namespace tokenyard::low_latency {

/// A lane's part of a unit as given by the caller.
struct RawUnit {
  Bytes16 data[2];  ///< two BF16 pieces are cast to one of FP8
};

struct CastUnit {
  Bytes16 data;
  Bytes16 scales;  ///< identical in all lanes
};

inline constexpr float kFp8Largest = 448;
/// Smallest magnitude assumed for a group.
inline constexpr float kLeastMagnitude = 1e-4f;
inline constexpr uint32_t kNansBf16 = 0x7fff7fff, kNansFp8 = 0x7f7f7f7f, kNanFp32 = 0x7fffffff;

TOKENYARD_DEVICE bool casts(const DispatchParams& params) {
  return params.row.is_fp8() && params.scales == nullptr;
}

/// Loads this lane's part of a unit; zeros for a lane without a piece.
TOKENYARD_DEVICE RawUnit load_unit(const DispatchParams& params, uint32_t token, uint32_t unit) {
  RawUnit raw{};
  const uint32_t piece = params.row.piece(unit, warp::lane());
  if (piece >= params.row.data_pieces()) return raw;
  const uint32_t given = casts(params) ? 2 : 1;
  const size_t pieces = size_t{params.row.data_pieces()} * given;
  const auto* const x =
      reinterpret_cast<const Bytes16*>(params.x) + token * pieces + size_t{piece} * given;
  raw.data[0] = load_vector<Cache::read_only>(x);
  if (given == 2) raw.data[1] = load_vector<Cache::read_only>(x + 1);
  return raw;
}

TOKENYARD_DEVICE float bf16_of(uint32_t word, uint32_t half) {
  return to_float(BFloat16{static_cast<uint16_t>(half == 0 ? word & 0xffff : word >> 16)});
}

TOKENYARD_DEVICE float magnitude(const RawUnit& raw) {
  float largest = kLeastMagnitude;
  for (const Bytes16& piece : raw.data)
    for (const uint32_t word : piece.word)
      largest =
          std::fmax(largest, std::fmax(std::fabs(bf16_of(word, 0)), std::fabs(bf16_of(word, 1))));
  return largest;
}

/// Casts to FP8, each group of 128 channels with its own scale. Called by all lanes. NaNs are
/// preserved; an infinity turns the group's finite values into zeros.
TOKENYARD_DEVICE CastUnit cast_unit(const RawUnit& raw, RowFormat format) {
  constexpr uint32_t kLanesAGroup = 8;
  float largest = magnitude(raw);
  for (uint32_t mask = kLanesAGroup / 2; mask != 0; mask /= 2)
    largest = std::fmax(largest, warp::shuffle_xor(largest, mask));
  float scale = largest / kFp8Largest, up = kFp8Largest / largest;
  uint32_t exponent = 0;
  if (format != RowFormat::fp8) {
    const ScaleE8M0 rounded = to_scale_e8m0(scale);
    exponent = rounded.bits;
    scale = to_float(rounded);
    up = 1.0f / scale;
  }
  CastUnit cast;
  for (uint32_t quad = 0; quad < 4; ++quad) {
    const Bytes16& piece = raw.data[quad / 2];
    const uint32_t low = piece.word[quad % 2 * 2], high = piece.word[quad % 2 * 2 + 1];
    cast.data.word[quad] = to_float8_e4m3_quad(bf16_of(low, 0) * up, bf16_of(low, 1) * up,
                                               bf16_of(high, 0) * up, bf16_of(high, 1) * up);
  }
  if (format == RowFormat::fp8_ue8m0) {
    uint32_t packed = 0;
    for (uint32_t group = 0; group < kScalesAPiece; ++group)
      packed |= warp::shuffle(exponent, group * kLanesAGroup) << 8 * group;
    cast.scales = {{0, packed, 0, 0}};
  } else {
    for (uint32_t group = 0; group < kScalesAPiece; ++group)
      cast.scales.word[group] = std::bit_cast<uint32_t>(warp::shuffle(scale, group * kLanesAGroup));
  }
  return cast;
}

/// Returns the caller's scales of a unit.
TOKENYARD_DEVICE Bytes16 given_scales(const DispatchParams& params, uint32_t token, uint32_t unit) {
  const auto* const words =
      static_cast<const uint32_t*>(params.scales) + size_t{token} * params.row.scale_words();
  // Four exponents may all be 0xff, so they never go into the first word, which is the flag.
  if (params.row.scales_packed()) return {{0, load_cached(words + unit), 0, 0}};
  Bytes16 scales{};
  for (uint32_t i = 0; i < kScalesAPiece; ++i)
    if (unit * kScalesAPiece + i < params.row.scale_words())
      scales.word[i] = load_cached(words + unit * kScalesAPiece + i);
  scales.word[0] = canonical(scales.word[0], kNanFp32);
  return scales;
}

/// Returns the pieces to send for a unit of a token. Called by all lanes.
TOKENYARD_DEVICE CastUnit prepare_unit(const DispatchParams& params, uint32_t token, uint32_t unit,
                                       const RawUnit& raw) {
  if (casts(params)) return cast_unit(raw, params.row.format());
  CastUnit cast{.data = raw.data[0], .scales = {}};
  cast.data.word[0] = canonical(cast.data.word[0], params.row.is_fp8() ? kNansFp8 : kNansBf16);
  if (params.row.is_fp8()) cast.scales = given_scales(params, token, unit);
  return cast;
}

}  // namespace tokenyard::low_latency
