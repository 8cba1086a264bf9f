/// Sums of rows, as a lane holds them: eight channels in fp32.
#pragma once

#include <cmath>

#include "expert_parallel/low_latency/call_kernel.hpp"
#include "expert_parallel/low_latency/combine.hpp"

namespace tokenyard::low_latency {

struct CombineShared {
  CallShared call;
  uint32_t lost[3];            ///< by turn: picks whose rank's sums some warp lacks
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

/// A lane's pick: the row that an expert of this rank made for it, and its weight.
struct WeightedRow {
  int32_t slot;  ///< -1: none here
  float weight;
};

/// By all lanes: adds the rows of the picks that lanes `first` and up hold and `live` (shifted down
/// by `first`) names, in their order, a few loads under way at a time.
DEVICE void add_rows(const Combine& call, LaneSums& sums, WeightedRow held, uint32_t live,
                     uint32_t first, uint32_t piece) {
  constexpr uint32_t kAtOnce = 4;
  const uint32_t pieces = call.params.pieces;
  const bool has_piece = piece < pieces;
  const auto* const y = reinterpret_cast<const Bytes16*>(call.params.y) + piece;
  while (live != 0) {
    Bytes16 rows[kAtOnce] = {};
    float weights[kAtOnce] = {};
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (live == 0) continue;
      const uint32_t lane = first + first_bit(live);
      live &= live - 1;
      const auto slot = static_cast<uint32_t>(warp::shuffle(held.slot, lane));
      weights[i] = warp::shuffle(held.weight, lane);
      if (has_piece) rows[i] = load_vector<Cache::read_only>(y + size_t{slot} * pieces);
    }
    // A place left over adds zero times zero to sums that then hold no -0.
    for (uint32_t i = 0; i < kAtOnce; ++i) sums.add(rows[i], weights[i]);
  }
}

}  // namespace tokenyard::low_latency
