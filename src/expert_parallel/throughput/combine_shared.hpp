/// What the roles of a combine share: the block's shared memory, the call as a thread sees it, and
/// the order in which rows pass through the ring.
#pragma once

#include "device/device.hpp"
#include "expert_parallel/throughput/combine.hpp"
#include "expert_parallel/throughput/phase.hpp"

namespace tokenyard::throughput {

struct CombineShared {
  CallShared call;
  Completion full[kCombineStagesMax];   ///< [groups][stages]
  Completion empty[kCombineStagesMax];  ///< arrived at by every summing warp of the group
  /// Of a block that prepares: up to which place each warp has written rows, or its part of them.
  uint32_t written[kCombineWarpsMax];
};

/// Blocks that pull: the first ones.
DEVICE uint32_t pullers_of(const CombineParams& params) {
  return grid::blocks() - params.preparation.blocks;
}

/// A warp's place in its group.
struct CombineWarp {
  uint32_t group;    ///< as many as there are groups: the warp that brings weights home
  uint32_t summer;   ///< of the group's; summers: the one that fetches
  uint32_t summers;  ///< of each group

  DEVICE static uint32_t warps_of_group(const CombineParams& params) {
    return block::threads() / kWarpLanes / params.groups;
  }
  DEVICE static CombineWarp mine(const CombineParams& params) {
    const uint32_t warps = warps_of_group(params);
    const uint32_t group = warp::index() / warps;
    const uint32_t place = warp::index() - group * warps;
    return {.group = group, .summer = place == 0 ? warps - 1 : place - 1, .summers = warps - 1};
  }
  DEVICE bool fetches() const { return summer == summers; }
};

struct Combine {
  const CombineParams& params;
  CombineShared& shared;
  const CombineTail& tail;
  const Deadline& deadline;
  uint32_t epoch, route_epoch;

  DEVICE bool prepares() const { return block::index() >= pullers_of(params); }
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
  uint32_t token = 0, rank = 0;
  int32_t row = -1;
};

/// A group's ring.
struct CombineRing {
  Completion* full;   ///< [stages]
  Completion* empty;  ///< [stages]
  std::byte* stages;  ///< [stages][stage_bytes]

  DEVICE static CombineRing of(const Combine& call, uint32_t group) {
    const uint32_t first = group * call.params.stages_most();
    return {call.shared.full + first, call.shared.empty + first,
            call.tail.stages() + size_t{first} * call.params.plan.stage_bytes};
  }
};

/// The order of a group's work, the same for the warp that fetches and those that sum: its tokens,
/// each in segments, each from some ranks at a time. A step is what is fetched at once.
struct CombineStep {
  uint32_t token, segment = 0, first_rank = 0;

  DEVICE static CombineStep first(const CombineParams& params, uint32_t group) {
    return {.token = block::index() * params.groups + group};
  }
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
    token += pullers_of(params) * params.groups;
  }
  DEVICE void advance(const CombineParams& params, uint32_t steps) {
    if (params.plan.segments == 1 && params.ranks_a_step >= params.call.ranks)
      token += steps * pullers_of(params) * params.groups;
    else
      for (uint32_t step = 0; step < steps; ++step) advance(params);
  }
  /// What is fetched in a turn: the row that its rank holds.
  DEVICE RankedRow row_of_turn(const CombineParams& params, uint32_t lane) const {
    const uint32_t turn = first_rank + lane;
    if (!within(params) || turn >= params.call.ranks) return {};
    const size_t of_token = size_t{token} * params.call.ranks;
    const uint32_t rank =
        params.order == nullptr ? turn : load_cached(params.order + of_token + turn);
    // Who asks for an order may have made a mistake: no such rank has a row.
    if (rank >= params.call.ranks) return {};
    return {.token = token, .rank = rank, .row = load_cached(params.route + of_token + rank)};
  }
  DEVICE uint32_t rows(const CombineParams& params) const {
    uint32_t rows = 0;
    for (uint32_t turn = 0; turn < params.ranks_a_step; ++turn)
      rows += row_of_turn(params, turn).row >= 0 ? 1 : 0;
    return rows;
  }
};

/// How many rows each step of a group has. A warp looks at 32 steps at once, a lane a step, while
/// it uses those of the 32 before: routes lie in memory, which takes longer to answer than a step.
class StepRows {
 public:
  DEVICE StepRows(const CombineParams& params, const CombineStep& first)
      : params_(params), ahead_(first) {
    for (uint32_t lane = 0; lane < warp::lane(); ++lane) ahead_.advance(params);
    coming_ = ahead_.rows(params);
  }

  /// Of the next step. By all lanes.
  DEVICE uint32_t next() {
    if (used_ == kWarpLanes) {
      rows_ = coming_;
      used_ = 0;
      for (uint32_t lane = 0; lane < kWarpLanes; ++lane) ahead_.advance(params_);
      coming_ = ahead_.rows(params_);
    }
    return warp::shuffle(rows_, used_++);
  }

 private:
  const CombineParams& params_;
  CombineStep ahead_;  // This lane's of the coming ones.
  uint32_t coming_, rows_ = 0;
  uint32_t used_ = kWarpLanes;
};

}  // namespace tokenyard::throughput
