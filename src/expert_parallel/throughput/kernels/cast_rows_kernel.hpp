/// The kernel that casts rows. See cast_rows.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/cast_rows.hpp"

namespace tokenyard::throughput {

inline constexpr float kFp8Largest = 448;
/// Smallest magnitude assumed for a group.
inline constexpr float kLeastMagnitude = 1e-4f;

/// One lane's channels, still in BF16.
struct LaneChannels {
  Bytes16 pieces[2];

  TOKENYARD_DEVICE float value(uint32_t i) const {
    const uint32_t word = pieces[i / 8].word[i % 8 / 2];
    return to_float(BFloat16{static_cast<uint16_t>(i % 2 == 0 ? word & 0xffff : word >> 16)});
  }
  /// Returns the largest magnitude. Ignores NaNs, which the cast itself preserves.
  TOKENYARD_DEVICE float magnitude() const {
    float largest = kLeastMagnitude;
    for (uint32_t i = 0; i < kChannelsALane; ++i) largest = std::fmax(largest, std::fabs(value(i)));
    return largest;
  }
  TOKENYARD_DEVICE Bytes16 cast(float up) const {
    Bytes16 piece;
    for (uint32_t quad = 0; quad < 4; ++quad)
      piece.word[quad] = to_float8_e4m3_quad(value(4 * quad) * up, value(4 * quad + 1) * up,
                                             value(4 * quad + 2) * up, value(4 * quad + 3) * up);
    return piece;
  }
};

/// Casts one token. Called by one warp: 512 channels at a time, each group held by neighbouring
/// lanes.
TOKENYARD_DEVICE void cast_row(const CastParams& params, uint32_t token) {
  const size_t row = size_t{token} * params.hidden;
  const uint32_t lanes_a_group = params.scale_channels / kChannelsALane;
  std::byte* const scales = params.scales + size_t{token} * params.scale_words * 4;
  for (uint32_t first = 0; first < params.hidden; first += kWarpLanes * kChannelsALane) {
    const uint32_t channel = first + warp::lane() * kChannelsALane;
    const bool used = channel < params.hidden;
    LaneChannels mine{};
    if (used) {
      const auto* const from = reinterpret_cast<const Bytes16*>(params.x + (row + channel) * 2);
      mine = {{load_vector<Cache::read_only>(from), load_vector<Cache::read_only>(from + 1)}};
    }
    float largest = mine.magnitude();
    for (uint32_t mask = lanes_a_group / 2; mask != 0; mask /= 2)
      largest = std::fmax(largest, warp::shuffle_xor(largest, mask));
    float scale = largest / kFp8Largest, up = kFp8Largest / largest;
    const ScaleE8M0 exponent = to_scale_e8m0(scale);
    if (params.packed) {
      scale = to_float(exponent);
      up = 1.0f / scale;
    }
    if (!used) continue;
    store_vector(reinterpret_cast<Bytes16*>(params.to + row + channel), mine.cast(up));
    if (warp::lane() % lanes_a_group != 0) continue;
    const uint32_t group = channel / params.scale_channels;
    if (params.packed)
      scales[group] = static_cast<std::byte>(exponent.bits);
    else
      reinterpret_cast<float*>(scales)[group] = scale;
  }
  // Zeroes the unused exponents of the last word.
  if (params.packed)
    for (uint32_t group = params.hidden / params.scale_channels + warp::lane();
         group < params.scale_words * 4; group += kWarpLanes)
      scales[group] = std::byte{0};
}

TOKENYARD_DEVICE void cast_rows(const CastParams& params) {
  const CallDeadline deadline(params.wait_context);
  if (block::any(deadline.failed())) return;  // An earlier call has failed.
  const uint32_t warps = block::threads() / kWarpLanes;
  for (uint32_t token = block::index() * warps + warp::index(); token < params.tokens;
       token += grid::blocks() * warps)
    cast_row(params, token);
}

TOKENYARD_DEFINE_KERNEL(cast_rows_kernel, cast_rows, CastParams, NoShared, kCastThreadsMax)

}  // namespace tokenyard::throughput
