/// The kernel that groups received rows by expert; expand_rows.hpp tells how.
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/expert_major/expand_rows.hpp"
#include "expert_parallel/expert_major/spread_rows_kernel.hpp"

namespace tokenyard::expert_major {

/// Every movers-th row of a range: all lie ready.
class ReadyRows {
 public:
  DEVICE ReadyRows(const ExpandParams& params, RowRange range)
      : params_(params), row_(range.begin + warp::index()), end_(range.end) {}

  DEVICE bool next(RowToSpread& row) {
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

/// By the whole block: picks an expert of the rows before the block's.
DEVICE void count_earlier_picks(const Group& group, RowRange range) {
  for (size_t pick = thread::index(); pick < size_t{range.begin} * group.rows.topk;
       pick += block::threads())
    count_pick(group, group.tail.before(), pick);
}

/// By the whole block, which then has to meet.
DEVICE void ready_expand(const ExpandParams& params, ExpandShared& shared, const GroupTail& tail) {
  for (uint32_t i = thread::index(); i < tail.word_count(); i += block::threads())
    tail.words()[i] = 0;
  if (thread::index() == 0)
    for (uint32_t stage = 0; stage < params.movers * params.plan.stages; ++stage)
      shared.full[stage].init(1);
  fence_async();  // For the completions, and for the zeros that bulk copies read.
}

/// By each mover.
DEVICE void spread_ready_rows(const ExpandParams& params, ExpandShared& shared, const Group& group,
                              RowRange range, const CallDeadline& deadline) {
  if (warp::lane() == 0) clear_padding(group, warp::index(), params.movers);
  warp::sync();
  const uint32_t first = warp::index() * params.plan.stages;
  const SpreadRing ring{
      .full = shared.full + first,
      .stages = block::shared_tail<ExpandShared>() + size_t{first} * params.plan.stage_bytes,
      .plan = params.plan,
      .next = {}};
  ReadyRows supply(params, range);
  RowSpreader<ReadyRows>(group.rows, ring, deadline, supply).spread_all();
}

DEVICE void expand_rows(const ExpandParams& params) {
  auto& shared = block::shared<ExpandShared>();
  const uint32_t warps = block::threads() / kWarpLanes;
  ExpandTail tail =
      ExpandTail::of(warps, params.grouping.layout.local_experts, params.movers, params.plan);
  tail.group.base = block::shared_tail<ExpandShared>() + tail.stages_bytes;
  const CallDeadline deadline(params.patience);
  ready_expand(params, shared, tail.group);
  // After a dispatch that failed there are no ids that could be trusted.
  if (block::any(deadline.failed())) return;
  const Group group{params.grouping, tail.group, 0};
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
  const RowRange mine = range.part(warp::index(), warps);
  count_earlier_picks(group, range);
  count_picks(group, mine);
  block::sync();
  find_next_places(group, throughput::Crew::of_block());
  block::sync();
  assign_places(group, mine);
  block::sync();
  if (warp::index() < params.movers) {
    spread_ready_rows(params, shared, group, range, deadline);
    return;
  }
  const uint32_t crew = warp::index() - params.movers, crews = warps - params.movers;
  copy_scales(group, range, crew, crews);
  mark_padding(group, crew, crews);
  if (block::index() == 0)
    write_offsets(group, {thread::index() - params.movers * kWarpLanes, crews * kWarpLanes});
}

DEFINE_KERNEL(expand_rows_kernel, expand_rows, ExpandParams, ExpandShared, kExpandThreadsMax)

}  // namespace tokenyard::expert_major
