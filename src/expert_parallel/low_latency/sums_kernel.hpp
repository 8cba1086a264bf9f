/// Sums of rows, as a lane holds them: eight channels in fp32.
#pragma once

#include <cmath>

#include "expert_parallel/low_latency/call_kernel.hpp"
#include "expert_parallel/low_latency/combine.hpp"

namespace tokenyard::low_latency {

/// A pick: the row that an expert of this rank made for it, and its weight.
struct alignas(8) WeightedRow {
  int32_t slot;  ///< -1: none here
  float weight;
};

/// What goes into the sum of one of this rank's tokens.
struct TokenPlan {
  uint32_t rows;     ///< of experts of this rank
  uint32_t shares;   ///< ranks that send a row of sums
  uint32_t missing;  ///< picks of ranks that are masked already
  WeightedRow row[kTopkMax];
  struct Share {
    uint32_t rank, picks;
  };
  Share share[kTopkMax];
};

struct CombineShared {
  CallShared call;
  TokenPlan plans[3];          ///< by turn
  uint32_t lost[3];            ///< by turn: shares that some warp lacks
  uint64_t waited[kRanksMax];  ///< cycles that the block's first thread waited
};

struct Combine {
  const CombineParams& params;
  CombineShared& shared;
  const Call& call;
};

class LaneSums {
 public:
  /// One rounding a step, by an explicit fused multiply-add: the same bits on every machine.
  DEVICE void add(const Bytes16& piece, float weight) {
    for (uint32_t i = 0; i < 4; ++i) {
      sums_[2 * i] = std::fma(weight, low(piece.word[i]), sums_[2 * i]);
      sums_[2 * i + 1] = std::fma(weight, high(piece.word[i]), sums_[2 * i + 1]);
    }
  }
  DEVICE void add(const Bytes16& piece) {
    for (uint32_t i = 0; i < 4; ++i) {
      sums_[2 * i] += low(piece.word[i]);
      sums_[2 * i + 1] += high(piece.word[i]);
    }
  }
  DEVICE float value(uint32_t i) const { return sums_[i]; }
  DEVICE void add_value(uint32_t i, float value) { sums_[i] += value; }
  DEVICE Bytes16 rounded() const {
    Bytes16 piece;
    for (uint32_t i = 0; i < 4; ++i)
      piece.word[i] = to_bfloat16_pair(sums_[2 * i], sums_[2 * i + 1]);
    return piece;
  }

 private:
  DEVICE static float low(uint32_t word) {
    return to_float(BFloat16{static_cast<uint16_t>(word & 0xffff)});
  }
  DEVICE static float high(uint32_t word) {
    return to_float(BFloat16{static_cast<uint16_t>(word >> 16)});
  }
  float sums_[8] = {};
};

/// Rows of picks, this lane's piece of each, a few at a time.
struct PickedRows {
  static constexpr uint32_t kAtOnce = 4;
  Bytes16 rows[kAtOnce] = {};

  /// By all lanes: the first rows of the picks that lanes `first` and up hold and `live` (shifted
  /// down by `first`) names are on their way. The picks that are left.
  DEVICE uint32_t load(const CombineParams& params, const WeightedRow& held, uint32_t live,
                       uint32_t first, uint32_t piece) {
    const uint32_t pieces = params.pieces;
    const auto* const y = reinterpret_cast<const Bytes16*>(params.y) + piece;
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (live == 0) continue;
      const auto slot = static_cast<uint32_t>(warp::shuffle(held.slot, first + first_bit(live)));
      live &= live - 1;
      if (piece < pieces) rows[i] = load_vector<Cache::read_only>(y + size_t{slot} * pieces);
    }
    return live;
  }
  /// By all lanes: adds those, in their order. `live` is what load() was given.
  DEVICE void add_to(LaneSums& sums, const WeightedRow& held, uint32_t live, uint32_t first) const {
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (live == 0) continue;
      sums.add(rows[i], warp::shuffle(held.weight, first + first_bit(live)));
      live &= live - 1;
    }
  }
};

/// The rows of a plan, added in their order.
DEVICE void add_rows(const Combine& call, LaneSums& sums, const TokenPlan& plan, uint32_t piece) {
  constexpr uint32_t kAtOnce = 4;
  const uint32_t pieces = call.params.pieces;
  const auto* const y = reinterpret_cast<const Bytes16*>(call.params.y) + piece;
  KEEP_ROLLED for (uint32_t first = 0; first < plan.rows; first += kAtOnce) {
    Bytes16 rows[kAtOnce] = {};
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (first + i >= plan.rows || piece >= pieces) continue;
      const auto slot = static_cast<uint32_t>(plan.row[first + i].slot);
      rows[i] = load_vector<Cache::read_only>(y + size_t{slot} * pieces);
    }
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (first + i < plan.rows) sums.add(rows[i], plan.row[first + i].weight);
    }
  }
}

}  // namespace tokenyard::low_latency
