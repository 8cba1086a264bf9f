/// The summing warps of a combining block: each holds its pieces of a token's segment in registers,
/// adds the ranks' rows to them in the order of the ranks, and rounds once.
#pragma once

#include "expert_parallel/throughput/combine_shared.hpp"

namespace tokenyard::throughput {

/// A lane's part of a segment: pieces `first`, `first + stride`, ...
struct SumLane {
  uint32_t first, stride;

  DEVICE static SumLane mine() {
    constexpr auto kFirst = static_cast<uint32_t>(CombineRole::first_summer);
    return {(warp::index() - kFirst) * kWarpLanes + warp::lane(),
            (block::threads() / kWarpLanes - kFirst) * kWarpLanes};
  }
};

class Sums {
 public:
  DEVICE void clear() {
    for (auto& piece : sums_)
      for (float& sum : piece) sum = 0;
  }

  DEVICE void add_row(const Bytes16* row, uint32_t pieces, SumLane lane) {
    for (uint32_t i = 0; i < kPiecesALane; ++i)
      if (const uint32_t piece = lane.first + i * lane.stride; piece < pieces)
        add_piece(sums_[i], load_vector(row + piece));
  }

  DEVICE void write(Bytes16* out, uint32_t pieces, SumLane lane) const {
    for (uint32_t i = 0; i < kPiecesALane; ++i)
      if (const uint32_t piece = lane.first + i * lane.stride; piece < pieces)
        store_vector(out + piece, rounded(sums_[i]));
  }

 private:
  static constexpr uint32_t kValues = 8;  // Of BF16 in a piece.

  DEVICE static void add_piece(float (&sums)[kValues], const Bytes16& piece) {
    for (uint32_t i = 0; i < kValues / 2; ++i) {
      sums[2 * i] += to_float(BFloat16{static_cast<uint16_t>(piece.word[i] & 0xffff)});
      sums[2 * i + 1] += to_float(BFloat16{static_cast<uint16_t>(piece.word[i] >> 16)});
    }
  }
  DEVICE static Bytes16 rounded(const float (&sums)[kValues]) {
    Bytes16 piece;
    for (uint32_t i = 0; i < kValues / 2; ++i)
      piece.word[i] = to_bfloat16_pair(sums[2 * i], sums[2 * i + 1]);
    return piece;
  }

  float sums_[kPiecesALane][kValues];
};

/// By each summing warp. A token that went nowhere becomes zeros.
DEVICE void sum_rows(const Combine& call) {
  const CombineParams& params = call.params;
  const StagePlan& plan = params.plan;
  const SumLane lane = SumLane::mine();
  RingPosition at;
  Sums sums;
  CombineStep step = CombineStep::first();
  int32_t next_row = step.row_of_lane(params);
  while (step.within(params)) {
    const CombineStep now = step;
    const uint32_t rows = population(warp::ballot(next_row >= 0));
    step.advance(params);
    next_row = step.row_of_lane(params);
    const uint32_t pieces = plan.bytes_of(now.segment, params.row_bytes) / sizeof(Bytes16);
    if (now.first_rank == 0) sums.clear();
    for (uint32_t i = 0; i < rows; ++i) {
      if (!warp::all(call.await_stage(Phase::combine_load, call.shared.full[at.stage], at.lap)))
        return;
      sums.add_row(
          reinterpret_cast<const Bytes16*>(call.tail.stages() + at.stage * plan.stage_bytes),
          pieces, lane);
      warp::sync();
      if (warp::lane() == 0) call.shared.empty[at.stage].arrive();
      at.advance(1, plan.stages);
    }
    if (!now.ends_segment(params)) continue;
    std::byte* const out =
        params.out + size_t{now.token} * params.row_bytes + now.segment * plan.segment_bytes;
    sums.write(reinterpret_cast<Bytes16*>(out), pieces, lane);
  }
}

}  // namespace tokenyard::throughput
