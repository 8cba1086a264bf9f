/// Layout of rows grouped by expert, in the arena of the rank that holds the experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::expert_major {

/// Expert e's rows begin at row offsets[e], a multiple of the alignment, in the order in which they
/// were received. The rest up to offsets[e + 1] is padding: zeros, unless the caller does not want
/// them.
struct ExpertRowsLayout {
  uint32_t rows;      ///< places, padding included
  uint32_t received;  ///< places of received rows
  uint32_t topk, local_experts;
  uint32_t row_bytes, scale_words;
  ScaleOrder scale_order;

  TOKENYARD_HOST_DEVICE size_t row_of_at() const { return 0; }  ///< [rows] int32
  TOKENYARD_HOST_DEVICE size_t weights_at() const {             ///< [rows] fp32
    return row_of_at() + aligned(size_t{rows} * sizeof(int32_t));
  }
  TOKENYARD_HOST_DEVICE size_t slots_at() const {  ///< [received, topk]
    return weights_at() + aligned(size_t{rows} * sizeof(float));
  }
  TOKENYARD_HOST_DEVICE size_t offsets_at() const {  ///< [experts + 1]
    return slots_at() + aligned(size_t{received} * topk * sizeof(int32_t));
  }
  /// Start of scales and rows, which may be freed while the parts before it are still in use.
  TOKENYARD_HOST_DEVICE size_t scales_at() const {
    return offsets_at() + aligned((size_t{local_experts} + 1) * sizeof(int32_t));
  }
  /// [rows, row_bytes]; last, so that the unused part of a bound can be given back.
  TOKENYARD_HOST_DEVICE size_t x_at() const {
    const size_t lines = scale_order == ScaleOrder::rows ? rows : scale_words;
    return scales_at() + aligned(lines * scale_stride() * sizeof(uint32_t));
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return bytes_with(rows); }
  /// Returns the size if only `kept` rows are kept.
  TOKENYARD_HOST_DEVICE size_t bytes_with(uint32_t kept) const {
    return x_at() + size_t{kept} * row_bytes;
  }
  TOKENYARD_HOST_DEVICE uint32_t scale_stride() const {
    return scale_order == ScaleOrder::rows ? scale_words : (rows + 3) / 4 * 4;
  }
  TOKENYARD_HOST_DEVICE size_t scale_index(uint32_t row, uint32_t word) const {
    const bool by_rows = scale_order == ScaleOrder::rows;
    return size_t{by_rows ? row : word} * scale_stride() + (by_rows ? word : row);
  }

 private:
  TOKENYARD_HOST_DEVICE static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
};

}  // namespace tokenyard::expert_major
