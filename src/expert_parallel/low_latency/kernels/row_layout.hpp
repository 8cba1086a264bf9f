/// A row in transit: its data in 16-byte pieces, then its scales.
#pragma once

#include <cstdint>

#include "device/identity.hpp"
#include "device/memory.hpp"
#include "expert_parallel/low_latency/kernels/protocol.hpp"

namespace tokenyard::low_latency {

/// Format of the rows that a dispatch delivers.
enum class RowFormat : uint32_t {
  bf16,         ///< as given
  fp8,          ///< E4M3, one fp32 scale per 128 channels: largest magnitude / 448
  fp8_rounded,  ///< the same, with scales rounded up to powers of two
  fp8_ue8m0,    ///< those scales as exponents, four per word
};
static_assert(static_cast<uint32_t>(RowFormat::fp8_ue8m0) < IdsStamp::kFormats);

inline constexpr uint32_t kScaleChannels = 128;

/// A piece of scales covers one unit of data: 512 channels, four scales.
inline constexpr uint32_t kScalesAPiece = 4;

/// A unit is what a warp moves at once: one piece per lane and, for FP8, one piece with the scales
/// of its channels. All units' data come first, then their scale pieces. Kernels read these numbers
/// for every unit, so only the host computes them.
class RowLayout {
 public:
  RowLayout() = default;
  RowLayout(uint32_t hidden, RowFormat format) : hidden_(hidden), format_(format) {
    const uint32_t channels_a_piece = is_fp8() ? 16 : 8;
    data_pieces_ = hidden / channels_a_piece;
    units_ = (data_pieces_ + kWarpLanes - 1) / kWarpLanes;
    const uint32_t groups = (hidden + kScaleChannels - 1) / kScaleChannels;
    if (is_fp8()) scale_words_ = scales_packed() ? (groups + 3) / 4 : groups;
  }

  TOKENYARD_HOST_DEVICE RowFormat format() const { return format_; }
  TOKENYARD_HOST_DEVICE bool is_fp8() const { return format_ != RowFormat::bf16; }
  TOKENYARD_HOST_DEVICE uint32_t data_pieces() const { return data_pieces_; }
  TOKENYARD_HOST_DEVICE uint32_t units() const { return units_; }
  /// Returns the index in the staged row of a lane's piece of a unit, valid if below data_pieces().
  TOKENYARD_HOST_DEVICE uint32_t piece(uint32_t unit, uint32_t lane) const {
    return unit * kWarpLanes + lane;
  }
  /// Returns the index of the scale piece of an FP8 unit.
  TOKENYARD_HOST_DEVICE uint32_t scale_piece(uint32_t unit) const {
    return units_ * kWarpLanes + unit;
  }
  /// Returns the pieces of a staged row, in whole cache lines.
  uint32_t staged_pieces() const { return (scale_piece(is_fp8() ? units_ : 0) + 7) / 8 * 8; }

  // The delivered row.
  uint32_t row_bytes() const { return hidden_ * (is_fp8() ? 1 : 2); }
  TOKENYARD_HOST_DEVICE bool scales_packed() const { return format_ == RowFormat::fp8_ue8m0; }
  /// Scale words per row, fp32 or four exponents; each scale covers 128 channels, the last maybe
  /// fewer.
  TOKENYARD_HOST_DEVICE uint32_t scale_words() const { return scale_words_; }

 private:
  uint32_t hidden_ = 0;
  RowFormat format_ = RowFormat::bf16;
  uint32_t data_pieces_ = 0, units_ = 0, scale_words_ = 0;
};

}  // namespace tokenyard::low_latency
