/// A row as it travels: its data in sixteen-byte pieces, then its scales.
#pragma once

#include <cstdint>

#include "device/identity.hpp"
#include "device/memory.hpp"

namespace tokenyard::low_latency {

/// What dispatch delivers.
enum class RowFormat : uint32_t {
  bf16,         ///< as given
  fp8,          ///< E4M3, an fp32 scale for 128 channels: largest magnitude / 448
  fp8_rounded,  ///< the same with scales rounded up to powers of two
  fp8_ue8m0,    ///< those scales as exponents, four to a word
};

inline constexpr uint32_t kScaleChannels = 128;

/// A unit is what a warp moves at once: a piece a lane, and for FP8 the scales of its channels in
/// one piece of their own. Data units lie first, the scale pieces after the last of them.
struct RowLayout {
  uint32_t hidden;
  RowFormat format;

  HOST_DEVICE bool is_fp8() const { return format != RowFormat::bf16; }
  HOST_DEVICE uint32_t channels_a_piece() const { return is_fp8() ? 16 : 8; }
  HOST_DEVICE uint32_t data_pieces() const { return hidden / channels_a_piece(); }
  HOST_DEVICE uint32_t data_units() const { return (data_pieces() + kWarpLanes - 1) / kWarpLanes; }
  HOST_DEVICE uint32_t scale_pieces() const { return is_fp8() ? data_units() : 0; }
  HOST_DEVICE uint32_t scale_units() const {
    return (scale_pieces() + kWarpLanes - 1) / kWarpLanes;
  }
  HOST_DEVICE uint32_t units() const { return data_units() + scale_units(); }
  HOST_DEVICE uint32_t first_scale_piece() const { return data_units() * kWarpLanes; }
  /// Where a lane's piece of a unit lies in the staged row, and whether there is one.
  HOST_DEVICE uint32_t piece(uint32_t unit, uint32_t lane) const {
    return unit * kWarpLanes + lane;
  }
  HOST_DEVICE bool has_piece(uint32_t unit, uint32_t lane) const {
    if (unit < data_units()) return piece(unit, lane) < data_pieces();
    return piece(unit, lane) - first_scale_piece() < scale_pieces();
  }
  /// Pieces that a staged row takes, in whole cache lines.
  HOST_DEVICE uint32_t staged_pieces() const {
    return (first_scale_piece() + scale_pieces() + 7) / 8 * 8;
  }

  // What is delivered.
  HOST_DEVICE uint32_t row_bytes() const { return hidden * (is_fp8() ? 1 : 2); }
  /// Scales of 128 channels; the last may cover fewer.
  HOST_DEVICE uint32_t groups() const { return (hidden + kScaleChannels - 1) / kScaleChannels; }
  HOST_DEVICE bool scales_packed() const { return format == RowFormat::fp8_ue8m0; }
  /// Words of scales a row: fp32, or four exponents each.
  HOST_DEVICE uint32_t scale_words() const {
    if (!is_fp8()) return 0;
    return scales_packed() ? (groups() + 3) / 4 : groups();
  }
};

/// A scale piece covers a data unit: 512 channels, four scales.
inline constexpr uint32_t kScalesAPiece = 4;

}  // namespace tokenyard::low_latency
