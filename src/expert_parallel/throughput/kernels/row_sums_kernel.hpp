/// Sums of a row's pieces, in the registers of the warps that share the row.
#pragma once

#include "device/unroll.hpp"
#include "expert_parallel/throughput/kernels/combine.hpp"
#include "expert_parallel/throughput/kernels/piece_sums_kernel.hpp"

namespace tokenyard::throughput {

/// A lane's part of a segment: pieces `first`, `first + stride`, ... below `pieces`.
struct SumLane {
  uint32_t first, stride, pieces;

  /// Returns whether the lane has all the pieces that it can hold. This is so for every lane if the
  /// row length suits the warps, and then saves a test per piece.
  TOKENYARD_DEVICE bool full() const { return first + (kPiecesALane - 1) * stride < pieces; }

  /// Calls `body(i, piece)` for each of the lane's pieces.
  template <class Body>
  TOKENYARD_DEVICE void each(Body body) const {
    if (full()) {
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesALane; ++i) body(i, first + i * stride);
    } else {
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesALane; ++i)
        if (first + i * stride < pieces) body(i, first + i * stride);
    }
  }
};

template <class Piece>
class Sums {
 public:
  TOKENYARD_DEVICE void clear() {
    for (auto& piece : sums_) piece.clear();
  }

  TOKENYARD_DEVICE void add_row(const Bytes16* row, const SumLane& lane) {
    add_each(row, lane, [](PieceSums<Piece>& sums, const Bytes16& piece) { sums.add(piece); });
  }

  TOKENYARD_DEVICE void add_row_scaled(const Bytes16* row, float factor, const SumLane& lane) {
    add_each(row, lane,
             [&](PieceSums<Piece>& sums, const Bytes16& piece) { sums.add_scaled(piece, factor); });
  }

  TOKENYARD_DEVICE void write(Bytes16* out, const SumLane& lane) const {
    lane.each([&](uint32_t i, uint32_t piece) { store_vector(out + piece, sums_[i].rounded()); });
  }

 private:
  template <class Add>
  TOKENYARD_DEVICE void add_each(const Bytes16* row, const SumLane& lane, Add add) {
    Bytes16 values[kPiecesALane] = {};
    lane.each([&](uint32_t i, uint32_t piece) { values[i] = load_vector(row + piece); });
    lane.each([&](uint32_t i, uint32_t) { add(sums_[i], values[i]); });
  }

  PieceSums<Piece> sums_[kPiecesALane];
};

}  // namespace tokenyard::throughput
