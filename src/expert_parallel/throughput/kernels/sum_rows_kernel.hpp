/// The summing warps of a group: each holds its pieces of a token's segment in registers, starts
/// with the biases, adds the rows in rank order, and rounds once. A stage's `named` says which row
/// is coming and its `full` that the row is there; every lane then arrives at `empty`.
#pragma once

#include "expert_parallel/throughput/kernels/combine_shared.hpp"
#include "expert_parallel/throughput/kernels/row_sums_kernel.hpp"

namespace tokenyard::throughput {

/// Called by each summing warp, for one element type. A token that went nowhere becomes zeros.
template <class Piece>
TOKENYARD_DEVICE void sum_rows_of(const Combine& call, const CombineWarp& mine) {
  const CombineParams& params = call.params;
  const StagePlan& plan = params.plan;
  const CombineRing ring = CombineRing::of(call, mine.group);
  SumLane lane{.first = mine.summer * kWarpLanes + warp::lane(),
               .stride = mine.summers * kWarpLanes,
               .pieces = 0};
  Sums<Piece> sums;
  for (RingPosition at;; at.advance(1, plan.stages)) {
    const auto await = [&](Completion& completion) {
      return warp::all(call.await_stage(Phase::combine_load, completion, at.lap));
    };
    if (!await(ring.named[at.stage])) return;
    const StagedRow row = ring.staged[at.stage];
    if (row.over) return;
    lane.pieces = plan.bytes_of(row.segment, params.row_bytes) / sizeof(Bytes16);
    const size_t piece_at = size_t{row.token} * params.row_bytes + row.segment * plan.segment_bytes;
    if (row.begins) {
      sums.clear();
      for (const std::byte* const bias : params.biases)
        if (bias != nullptr) sums.add_row(reinterpret_cast<const Bytes16*>(bias + piece_at), lane);
    }
    if (!await(ring.full[at.stage])) return;
    if (row.holds_row)
      sums.add_row(reinterpret_cast<const Bytes16*>(ring.stages + at.stage * plan.stage_bytes),
                   lane);
    warp::sync();
    ring.empty[at.stage].arrive();
    if (row.ends) sums.write(reinterpret_cast<Bytes16*>(params.out + piece_at), lane);
  }
}

TOKENYARD_DEVICE void sum_rows(const Combine& call, const CombineWarp& mine) {
  switch (call.params.call.format.type()) {
    case ElementType::fp16:
      return sum_rows_of<Fp16Piece>(call, mine);
    case ElementType::fp32:
      return sum_rows_of<Fp32Piece>(call, mine);
    default:
      return sum_rows_of<Bf16Piece>(call, mine);
  }
}

}  // namespace tokenyard::throughput
