/// The kernel that groups received rows by expert. See expand_rows.hpp.
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/by_expert/spread_rows_kernel.hpp"

namespace tokenyard::expert_major {

using throughput::ThreadGroup;

/// Every movers-th row of a range; all are ready.
class ReadyRows {
 public:
  TOKENYARD_DEVICE ReadyRows(const ExpandParams& params, RowRange range)
      : params_(params), row_(range.begin + warp::index()), end_(range.end) {}

  TOKENYARD_DEVICE bool next(RowToSpread& row) {
    if (row_ >= end_) return false;
    row = {row_, params_.x + size_t{row_} * params_.grouping.layout.row_bytes};
    row_ += params_.movers;
    return true;
  }

 private:
  const ExpandParams& params_;
  uint32_t row_;
  const uint32_t end_;
};

/// Assigns the block's rows their places. Called by all placers.
TOKENYARD_DEVICE void place_ready_rows(const ExpandParams& params, const Group& group,
                                       RowRange range) {
  const ThreadGroup thread_group{thread::index() - params.movers * kWarpLanes,
                                 group.tail.placers * kWarpLanes};
  const auto meet = [&] { NamedBarrier(ExpandBarrier::placers).sync(thread_group.size); };
  const RowRange mine = range.part(group.placer(), group.tail.placers);
  // Each expert's total is known, so counting on either side of the block's first row suffices.
  const size_t first = size_t{range.begin} * group.rows.topk;
  const size_t all = size_t{params.rows} * group.rows.topk;
  const bool from_behind = first > all - first;
  uint32_t* const before = group.tail.before();
  count_choices_between(group, before, from_behind ? first : 0, from_behind ? all : first,
                        thread_group);
  count_choices(group, mine);
  meet();
  // find_next_places gives an expert to the same thread, so no barrier is needed in between.
  for (uint32_t expert = thread_group.index; from_behind && expert < group.tail.local_experts;
       expert += thread_group.size)
    before[expert] = group.tail.tokens()[expert] - before[expert];
  find_next_places(group, thread_group);
  meet();
  assign_places(group, mine);
}

/// Initializes shared memory. Called by the whole block, which must synchronize afterwards.
TOKENYARD_DEVICE void ready_expand(const ExpandParams& params, ExpandShared& shared,
                                   const GroupTail& tail) {
  for (uint32_t i = thread::index(); i < tail.word_count(); i += block::threads())
    tail.words()[i] = 0;
  if (thread::index() == 0)
    for (uint32_t stage = 0; stage < params.movers * params.plan.stages; ++stage)
      shared.full[stage].init(1);
  fence_async();  // Orders the initialized completions, and the zeros, before the bulk copies that
                  // use them.
}

/// Called by each mover.
TOKENYARD_DEVICE void spread_ready_rows(const ExpandParams& params, ExpandShared& shared,
                                        const Group& group, RowRange range,
                                        const CallDeadline& deadline) {
  const uint32_t first = warp::index() * params.plan.stages;
  const SpreadRing ring{
      .full = shared.full + first,
      .stages = block::shared_tail<ExpandShared>() + size_t{first} * params.plan.stage_bytes,
      .plan = params.plan,
      .next = {}};
  ReadyRows supply(params, range);
  RowSpreader<ReadyRows>(group.rows, ring, deadline, supply).spread_all();
}

TOKENYARD_DEVICE void expand_rows(const ExpandParams& params) {
  auto& shared = block::shared<ExpandShared>();
  const uint32_t warps = block::threads() / kWarpLanes;
  ExpandTail tail =
      ExpandTail::of(warps, params.grouping.layout.local_experts, params.movers, params.plan);
  tail.group.base = block::shared_tail<ExpandShared>() + tail.stages_bytes;
  const CallDeadline deadline(params.wait_context);
  ready_expand(params, shared, tail.group);
  grid::wait_for_previous();
  // A failed dispatch leaves ids that cannot be trusted.
  if (block::any(deadline.failed())) return;
  const Group group{params.grouping, tail.group, params.movers};
  if (warp::index() == 0) {
    for (uint32_t expert = warp::lane(); expert < tail.group.local_experts; expert += kWarpLanes)
      tail.group.tokens()[expert] = params.tokens_per_expert[expert];
    warp::sync();
    find_offsets(group);
  }
  block::sync();
  if (group.too_many()) {
    if (block::index() == 0 && thread::index() == 0)
      deadline.fail(Failure::refused, Awaited{.phase = kTooFewPlaces,
                                              .rank = 0,
                                              .expected = group.places_used(),
                                              .seen = params.grouping.layout.rows});
    return;
  }
  const RowRange range = RowRange{0, params.rows}.part(block::index(), grid::blocks());
  const bool moves = warp::index() < params.movers;
  if (moves)
    clear_padding(group, warp::index(), params.movers);
  else
    place_ready_rows(params, group, range);
  block::sync();
  if (moves) {
    spread_ready_rows(params, shared, group, range, deadline);
    return;
  }
  const uint32_t thread_group = warp::index() - params.movers,
                 thread_groups = warps - params.movers;
  copy_scales(group, range, thread_group, thread_groups);
  mark_padding(group, thread_group, thread_groups);
  if (block::index() == 0)
    write_offsets(group,
                  {thread::index() - params.movers * kWarpLanes, thread_groups * kWarpLanes});
}

TOKENYARD_DEFINE_KERNEL(expand_rows_kernel, expand_rows, ExpandParams, ExpandShared,
                        kExpandThreadsMax)

}  // namespace tokenyard::expert_major
