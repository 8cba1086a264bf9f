/// Layout of what a rank receives in its arena. The host uses it to size memory, and peers' kernels
/// to write it.
///
///     lower end                                                           upper end
///     | rows | scales |          ...              | ids | weights | source tokens |
///     ^ ReadyWord::rows                                         ReadyWord::beside ^
///
/// There are two blocks: rows and scales are freed when the caller is done with them; the metadata
/// belongs to the route and stays until its last combine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Both blocks are packed for the rows that there are places for: those that arrive, which every
/// sender knows from the counts before it stores anything but rows, or a bound that the receiver
/// announced. Rows begin at the announced offset and metadata ends at its own, so the unused part
/// of a bound adjoins free memory, and routes cause no fragmentation.
struct ReceivedLayout {
  uint32_t rows, row_bytes;
  uint32_t topk;  ///< 0 on a known route, which already has ids, weights and source tokens
  uint32_t scale_words;
  ScaleOrder scale_order;

  // In the block of rows.
  TOKENYARD_HOST_DEVICE size_t rows_at() const { return 0; }  ///< [rows, row_bytes]
  TOKENYARD_HOST_DEVICE size_t scales_at() const { return aligned(size_t{rows} * row_bytes); }
  TOKENYARD_HOST_DEVICE size_t bytes() const {
    const size_t lines = scale_order == ScaleOrder::rows ? rows : scale_words;
    return scales_at() + aligned(lines * scale_stride() * sizeof(uint32_t));
  }
  // In the block of the route.
  TOKENYARD_HOST_DEVICE size_t ids_at() const { return 0; }  ///< [rows, topk] int32
  TOKENYARD_HOST_DEVICE size_t weights_at() const {
    return choices_bytes();
  }  ///< [rows, topk] fp32
  TOKENYARD_HOST_DEVICE size_t sources_at() const { return 2 * choices_bytes(); }  ///< [rows] int32
  TOKENYARD_HOST_DEVICE size_t beside_bytes() const {
    return sources_at() + (topk == 0 ? 0 : aligned(size_t{rows} * sizeof(int32_t)));
  }
  /// Words between the scales of neighbouring rows, or between columns.
  TOKENYARD_HOST_DEVICE uint32_t scale_stride() const {
    return scale_order == ScaleOrder::rows ? scale_words : (rows + 3) / 4 * 4;
  }
  TOKENYARD_HOST_DEVICE size_t scale_index(uint32_t row, uint32_t word) const {
    const bool by_rows = scale_order == ScaleOrder::rows;
    return size_t{by_rows ? row : word} * scale_stride() + (by_rows ? word : row);
  }

 private:
  TOKENYARD_HOST_DEVICE size_t choices_bytes() const {
    return aligned(size_t{rows} * topk * sizeof(int32_t));
  }
  /// Each part begins at a multiple of kOffsetUnit, so that a word can announce it.
  TOKENYARD_HOST_DEVICE static size_t aligned(size_t bytes) {
    return (bytes + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  }
};

}  // namespace tokenyard::throughput
