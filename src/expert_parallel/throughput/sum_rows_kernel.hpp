/// The summing warps of a combining block: each holds its pieces of a token's segment in registers,
/// begins with the biases, adds the ranks' rows in the order of the ranks, and rounds once.
#pragma once

#include "expert_parallel/throughput/combine_shared.hpp"
#include "expert_parallel/throughput/piece_sums_kernel.hpp"

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

template <class Piece>
class Sums {
 public:
  DEVICE void clear() {
    for (auto& piece : sums_) piece.clear();
  }

  DEVICE void add_row(const Bytes16* row, uint32_t pieces, SumLane lane) {
    for (uint32_t i = 0; i < kPiecesALane; ++i)
      if (const uint32_t piece = lane.first + i * lane.stride; piece < pieces)
        sums_[i].add(load_vector(row + piece));
  }

  DEVICE void write(Bytes16* out, uint32_t pieces, SumLane lane) const {
    for (uint32_t i = 0; i < kPiecesALane; ++i)
      if (const uint32_t piece = lane.first + i * lane.stride; piece < pieces)
        store_vector(out + piece, sums_[i].rounded());
  }

 private:
  PieceSums<Piece> sums_[kPiecesALane];
};

/// By each summing warp, for rows of one type. A token that went nowhere becomes zeros.
template <class Piece>
DEVICE void sum_rows_of(const Combine& call) {
  const CombineParams& params = call.params;
  const StagePlan& plan = params.plan;
  const SumLane lane = SumLane::mine();
  RingPosition at;
  Sums<Piece> sums;
  CombineStep step = CombineStep::first();
  int32_t next_row = step.row_of_lane(params).row;
  while (step.within(params)) {
    const CombineStep now = step;
    const uint32_t rows = population(warp::ballot(next_row >= 0));
    step.advance(params);
    next_row = step.row_of_lane(params).row;
    const uint32_t pieces = plan.bytes_of(now.segment, params.row_bytes) / sizeof(Bytes16);
    const size_t piece_at = size_t{now.token} * params.row_bytes + now.segment * plan.segment_bytes;
    if (now.first_rank == 0) {
      sums.clear();
      for (const std::byte* const bias : params.biases)
        if (bias != nullptr)
          sums.add_row(reinterpret_cast<const Bytes16*>(bias + piece_at), pieces, lane);
    }
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
    sums.write(reinterpret_cast<Bytes16*>(params.out + piece_at), pieces, lane);
  }
}

DEVICE void sum_rows(const Combine& call) {
  switch (call.params.call.format.type()) {
    case ElementType::fp16:
      return sum_rows_of<Fp16Piece>(call);
    case ElementType::fp32:
      return sum_rows_of<Fp32Piece>(call);
    default:
      return sum_rows_of<Bf16Piece>(call);
  }
}

}  // namespace tokenyard::throughput
