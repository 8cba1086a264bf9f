/// The fetching warp of a group: brings the rows of the group's tokens into its ring, a lane a
/// rank.
#pragma once

#include "expert_parallel/throughput/combine_shared.hpp"

namespace tokenyard::throughput {

DEVICE Peer<const std::byte> rows_on(const Combine& call, uint32_t rank) {
  return (call.params.call.arenas.of(rank) +
          static_cast<std::ptrdiff_t>(call.hellos().rows_at(rank)))
      .template as<const std::byte>();
}

/// Starts the load of one row's segment into a stage, once that is free. False if the call failed.
DEVICE bool fetch_row(const Combine& call, const CombineRing& ring, const CombineStep& step,
                      uint32_t row, RingPosition at, uint32_t rank) {
  const CombineParams& params = call.params;
  const StagePlan& plan = params.plan;
  // On the first lap stages have never been used.
  if (at.lap > 0 && !call.await_stage(Phase::combine_stage, ring.empty[at.stage], at.lap - 1))
    return false;
  const uint32_t bytes = plan.bytes_of(step.segment, params.row_bytes);
  const size_t offset = size_t{row} * params.row_bytes + step.segment * plan.segment_bytes;
  Completion& full = ring.full[at.stage];
  full.arrive_expect(bytes);
  bulk::load(ring.stages + at.stage * plan.stage_bytes,
             rows_on(call, rank) + static_cast<std::ptrdiff_t>(offset), bytes, full);
  return true;
}

/// Returns once every load has landed, or the call has failed and those that were started have.
DEVICE void fetch_rows(const Combine& call, uint32_t group) {
  const CombineParams& params = call.params;
  const CombineRing ring = CombineRing::of(call, group);
  // The peers' ordinary stores to their rows, of which their hellos told, come before the copies.
  fence_async();
  RingPosition at;
  CombineStep step = CombineStep::first(params, group);
  RankedRow next_row = step.row_of_turn(params, warp::lane());
  bool going = true;
  while (going && step.within(params)) {
    const CombineStep now = step;
    const RankedRow row = next_row;
    step.advance(params);
    next_row = step.row_of_turn(params, warp::lane());  // On its way while stages are awaited.
    const uint32_t wanted = warp::ballot(row.row >= 0);
    // A step fits the ring, so a lane waits for stages of earlier steps only, never for a lane of
    // its own warp.
    RingPosition mine = at;
    mine.advance(population(wanted & lanes_below()), params.plan.stages);
    bool fetched = true;
    if (row.row >= 0)
      fetched = fetch_row(call, ring, now, static_cast<uint32_t>(row.row), mine, row.rank);
    going = warp::all(fetched);
    at.advance(population(wanted), params.plan.stages);
  }
  if (warp::lane() == 0) let_loads_land(ring.full, at, params.plan.stages);
  warp::sync();
}

}  // namespace tokenyard::throughput
