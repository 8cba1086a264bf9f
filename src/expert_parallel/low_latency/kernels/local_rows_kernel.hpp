/// Rows that experts of this rank produced for one of this rank's tokens.
#pragma once

#include "expert_parallel/low_latency/kernels/sums_kernel.hpp"

namespace tokenyard::low_latency {

/// A lane's pieces of a span of each such row. If registers allow, the constructor computes the
/// first addresses, so that nothing else precedes the loads.
template <class Codec>
class LocalRows {
  static constexpr uint32_t kChunks = Codec::kSpanChunks, kAtOnce = 3;
  static constexpr bool kFindsAhead = Codec::kHasRegisters;
  static_assert(kAtOnce <= 1 + TokenPlan::kNoRows);

 public:
  /// `there_are`: if false, treats the plan as having no rows.
  TOKENYARD_DEVICE LocalRows(const PiecesOfRows<kChunks>& y, const TokenPlan& plan, bool there_are)
      : y_(y), plan_(plan), count_(there_are ? plan.rows : 0) {
    if (kFindsAhead) find(0);
  }
  /// Loads the rows and adds them in order. Called by all lanes.
  TOKENYARD_DEVICE void add_to(SpanSums<kChunks>& sums) {
    if (count_ == 0) return;
    // The first rows are handled outside the loop: in a loop, nvcc makes the first iteration's
    // loads wait for earlier loads too.
    if (kFindsAhead) add_found(0, sums);
    TOKENYARD_KEEP_ROLLED for (uint32_t first = kFindsAhead ? kAtOnce : 0; first < count_;
                               first += kAtOnce) {
      find(first);
      add_found(first, sums);
    }
  }

 private:
  TOKENYARD_DEVICE void find(uint32_t first) {
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) places_[i] =
        settled(y_.place(plan_.row[first + i].slot));
  }
  TOKENYARD_DEVICE void add_found(uint32_t first, SpanSums<kChunks>& sums) const {
    const uint32_t left = settled(count_ - first);
    uint32_t held[kChunks];
    TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) held[c] = y_.there_is(c) ? left : 0;
    SpanPieces<kChunks> rows[kAtOnce];
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) if (i < held[c]) rows[i].of[c] =
          y_.load(places_[i], c);
    }
    // Something must follow: nvcc turns a last load with a condition into a branch.
    warp::sync();
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) if (i < left)
        sums.add(rows[i], plan_.row[first + i].weight);
  }

  const PiecesOfRows<kChunks>& y_;
  const TokenPlan& plan_;
  const uint32_t count_;
  const Bytes16* places_[kAtOnce];
};

}  // namespace tokenyard::low_latency
