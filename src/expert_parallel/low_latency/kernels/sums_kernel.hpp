/// Sums of rows, as a lane holds them: eight channels in fp32.
#pragma once

#include <cmath>

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"
#include "expert_parallel/low_latency/kernels/combine.hpp"

namespace tokenyard::low_latency {

/// A choice: the row that an expert of this rank produced for it, and its weight.
struct alignas(8) WeightedRow {
  int32_t slot;  ///< -1: none here
  float weight;
};

/// Terms of the sum of one of this rank's tokens.
struct TokenPlan {
  uint32_t rows;          ///< from experts of this rank
  uint32_t partial_sums;  ///< ranks that send a partial sum
  /// Lost partial sums as bits and, above them, the number of finished spans: one word, so that a
  /// reader that sees all spans finished also sees all losses.
  uint32_t outcome;
  static constexpr uint32_t kSpanFinished = 1u << kTopkMax;
  TOKENYARD_DEVICE static uint32_t lost_in(uint32_t outcome) {
    return outcome & (kSpanFinished - 1);
  }
  TOKENYARD_DEVICE uint32_t lost() const { return lost_in(outcome); }
  /// Returns the partial sums that count, as bits.
  TOKENYARD_DEVICE uint32_t kept() const { return ((1u << partial_sums) - 1) & ~lost(); }
  static constexpr uint32_t kNoRows = 2;
  WeightedRow row[kTopkMax + kNoRows];  ///< the last are empty, since three are read at once
  struct alignas(16) PartialSum {
    Peer<Bytes16> staged;
    uint16_t rank, choices;
    static_assert(kRanksMax - 1 <= UINT16_MAX);
    float weight;  ///< of a single choice, whose row comes unchanged; else 1
  };
  PartialSum partial_sum[kTopkMax];
};

/// A row of y that goes into the sum of another rank's token.
struct alignas(16) PlannedRow {
  static constexpr int32_t kEnds = INT32_MIN;
  int32_t slot;  ///< with kEnds set: the last row of its token
  float weight;
  Peer<Bytes16> home;  ///< in the last row: staging of the token's partial sum; null: no rank
                       ///< awaits it
};

/// Rows of some tokens, token by token.
struct PlannedGroup {
  uint32_t rows;
  PlannedRow row[kWarpLanes + 1];  ///< the last is empty, since four are read at once
};

struct CombineShared {
  PlannedGroup groups[kLogFmtThreadsMax / kWarpLanes];  ///< per warp of a sending block
  TokenPlan plans[kLogFmtThreadsMax / kWarpLanes];      ///< per warp of a receiving block
};

struct Combine {
  const CombineParams& params;
  CombineShared& shared;
  const CombineTail tail;
  const Call& call;
  uint32_t weights_stamp = 0;  ///< sending blocks: of the batch
};

/// Returns the block's words per rank.
TOKENYARD_DEVICE CombineTail tail_of(const CombineParams& params) {
  return {.base = block::shared_tail<CombineShared>(), .ranks = params.call.ranks};
}

class LaneSums {
 public:
  /// Rounds once per step, by explicit fused multiply-adds: the same bits on every machine.
  TOKENYARD_DEVICE void add(const Bytes16& piece, float weight) {
    for (uint32_t i = 0; i < 4; ++i) {
      sums_[2 * i] = std::fma(weight, low(piece.word[i]), sums_[2 * i]);
      sums_[2 * i + 1] = std::fma(weight, high(piece.word[i]), sums_[2 * i + 1]);
    }
  }
  TOKENYARD_DEVICE float value(uint32_t i) const { return sums_[i]; }
  TOKENYARD_DEVICE void add_value(uint32_t i, float value, float weight) {
    sums_[i] = std::fma(weight, value, sums_[i]);
  }
  TOKENYARD_DEVICE Bytes16 rounded() const {
    Bytes16 piece;
    for (uint32_t i = 0; i < 4; ++i)
      piece.word[i] = to_bfloat16_pair(sums_[2 * i], sums_[2 * i + 1]);
    return piece;
  }

 private:
  TOKENYARD_DEVICE static float low(uint32_t word) {
    return to_float(BFloat16{static_cast<uint16_t>(word & 0xffff)});
  }
  TOKENYARD_DEVICE static float high(uint32_t word) {
    return to_float(BFloat16{static_cast<uint16_t>(word >> 16)});
  }
  float sums_[8] = {};
};

/// A lane's pieces of a span, one per chunk.
template <uint32_t kChunks>
struct SpanPieces {
  Bytes16 of[kChunks] = {};
};

template <uint32_t kChunks>
struct SpanSums {
  LaneSums of[kChunks];

  TOKENYARD_DEVICE void add(const SpanPieces<kChunks>& pieces, float weight) {
    TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) of[c].add(pieces.of[c], weight);
  }
};

/// A lane's pieces of the experts' rows. Offsets are in bytes, so that an address costs one
/// multiplication.
template <uint32_t kChunks>
class PiecesOfRows {
 public:
  PiecesOfRows() = default;
  TOKENYARD_DEVICE PiecesOfRows(const CombineParams& params, uint32_t span) {
    const uint32_t piece = span * kChunks * kWarpLanes + warp::lane();
    of_slot_0_ = settled(params.y + size_t{piece} * sizeof(Bytes16));
    row_bytes_ = params.pieces * static_cast<uint32_t>(sizeof(Bytes16));
    left_ = static_cast<int32_t>(params.pieces - piece);
  }
  // Short, so that conditions become predicates: loads in branches each wait for the previous one.
  TOKENYARD_DEVICE bool there_is(uint32_t c) const {
    return left_ > static_cast<int32_t>(c * kWarpLanes);
  }
  /// Valid for any slot, so that the address can be computed without a condition.
  TOKENYARD_DEVICE const Bytes16* place(int32_t slot) const {
    return reinterpret_cast<const Bytes16*>(of_slot_0_ +
                                            uint64_t{static_cast<uint32_t>(slot)} * row_bytes_);
  }
  TOKENYARD_DEVICE Bytes16 load(const Bytes16* place, uint32_t c) const {
    return load_vector<Cache::read_only>(place + c * kWarpLanes);
  }
  TOKENYARD_DEVICE Bytes16 load(int32_t slot, uint32_t c) const { return load(place(slot), c); }

 private:
  const std::byte* of_slot_0_ = nullptr;
  uint32_t row_bytes_ = 0;
  int32_t left_ = 0;
};

}  // namespace tokenyard::low_latency
