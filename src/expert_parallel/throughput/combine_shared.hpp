/// What the roles of a combine share: the block's shared memory, the call as a thread sees it, and
/// the order in which rows pass through the ring.
#pragma once

#include "device/device.hpp"
#include "expert_parallel/throughput/combine.hpp"
#include "expert_parallel/throughput/phase.hpp"

namespace tokenyard::throughput {

struct CombineShared {
  Completion full[kStagesMax];
  Completion empty[kStagesMax];  ///< arrived at by every summing warp
  uint32_t epoch;
};

struct Combine {
  const CombineParams& params;
  CombineShared& shared;
  const CombineTail& tail;
  const Deadline& deadline;

  DEVICE Hellos hellos() const { return tail.hellos(); }

  /// For one stage to be filled or emptied; all lanes of the warp learn the same.
  DEVICE bool await_stage(Phase phase, Completion& completion, uint32_t lap) const {
    Awaited what{.phase = static_cast<uint32_t>(phase),
                 .rank = params.call.rank,
                 .expected = lap + 1,
                 .seen = lap};
    return wait_until(deadline, what, [&] { return completion.done(lap & 1); });
  }
};

/// A row of a token, or none.
struct RankedRow {
  uint32_t rank = 0;
  int32_t row = -1;
};

/// The order of a block's work, the same for the warp that fetches and those that sum: its tokens,
/// each in segments, each from some ranks at a time. A step is what is fetched at once.
struct CombineStep {
  uint32_t token, segment = 0, first_rank = 0;

  DEVICE static CombineStep first() { return {.token = block::index()}; }
  DEVICE bool within(const CombineParams& params) const { return token < params.tokens; }
  DEVICE bool ends_segment(const CombineParams& params) const {
    return first_rank + params.ranks_a_step >= params.call.ranks;
  }
  DEVICE void advance(const CombineParams& params) {
    first_rank += params.ranks_a_step;
    if (first_rank < params.call.ranks) return;
    first_rank = 0;
    if (++segment < params.plan.segments) return;
    segment = 0;
    token += grid::blocks();
  }
  /// What this lane fetches: the row that its rank holds.
  DEVICE RankedRow row_of_lane(const CombineParams& params) const {
    const uint32_t turn = first_rank + warp::lane();
    if (!within(params) || warp::lane() >= params.ranks_a_step || turn >= params.call.ranks)
      return {};
    const size_t of_token = size_t{token} * params.call.ranks;
    const uint32_t rank =
        params.order == nullptr ? turn : load_cached(params.order + of_token + turn);
    // Who asks for an order may have made a mistake: no such rank has a row.
    if (rank >= params.call.ranks) return {};
    return {.rank = rank, .row = load_cached(params.route + of_token + rank)};
  }
};

}  // namespace tokenyard::throughput
