/// How what a rank receives lies in its arena. One type for the host, which sizes it, and for the
/// kernels of its peers, which write it.
///
///     lower end                                                           upper end
///     | rows | scales |          ...              | ids | weights | source tokens |
///     ^ told as `rows`                                              told as `beside` ^
///
/// Two pieces: rows and their scales go when the caller has done with them, while what travels
/// beside them is the route's and stays until its last combine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Both are packed for as many rows as there are places: those that come, which every sender knows
/// from the counts before it stores anything but rows, or a bound that the receiver has named.
/// Rows begin where peers are told. What lies beside them ends where they are told, so that what a
/// bound turns out not to need is on the side of the free memory, and routes leave no gaps.
struct ReceivedLayout {
  uint32_t rows, row_bytes;
  uint32_t topk;  ///< 0 on a known route, which has its ids, weights and source tokens already
  uint32_t scale_words;
  ScaleOrder scale_order;

  // In the piece of rows.
  HOST_DEVICE size_t rows_at() const { return 0; }  ///< [rows, row_bytes]
  HOST_DEVICE size_t scales_at() const { return aligned(size_t{rows} * row_bytes); }
  HOST_DEVICE size_t bytes() const {
    const size_t lines = scale_order == ScaleOrder::rows ? rows : scale_words;
    return scales_at() + aligned(lines * scale_stride() * sizeof(uint32_t));
  }
  // In the route's piece.
  HOST_DEVICE size_t ids_at() const { return 0; }                        ///< [rows, topk] int32
  HOST_DEVICE size_t weights_at() const { return choices_bytes(); }      ///< [rows, topk] fp32
  HOST_DEVICE size_t sources_at() const { return 2 * choices_bytes(); }  ///< [rows] int32
  HOST_DEVICE size_t beside_bytes() const {
    return sources_at() + (topk == 0 ? 0 : aligned(size_t{rows} * sizeof(int32_t)));
  }
  /// Words from one row's scales to the next one's, or from column to column.
  HOST_DEVICE uint32_t scale_stride() const {
    return scale_order == ScaleOrder::rows ? scale_words : (rows + 3) / 4 * 4;
  }
  HOST_DEVICE size_t scale_index(uint32_t row, uint32_t word) const {
    const bool by_rows = scale_order == ScaleOrder::rows;
    return size_t{by_rows ? row : word} * scale_stride() + (by_rows ? word : row);
  }

 private:
  HOST_DEVICE size_t choices_bytes() const {
    return aligned(size_t{rows} * topk * sizeof(int32_t));
  }
  /// Each part begins where peers can be told of it by a word (kOffsetUnit).
  HOST_DEVICE static size_t aligned(size_t bytes) {
    return (bytes + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  }
};

}  // namespace tokenyard::throughput
