/// The kernel that groups received rows by expert; expand_rows.hpp tells how.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "expert_parallel/expert_major/expand_call.hpp"
#include "expert_parallel/expert_major/spread_rows_kernel.hpp"
#include "expert_parallel/throughput/crew.hpp"

namespace tokenyard::expert_major {

/// By one warp: where each expert's rows begin.
DEVICE void find_offsets(const Expand& call) {
  const uint32_t experts = call.tail.local_experts, alignment = call.params.alignment;
  uint32_t begin = 0;
  for (uint32_t first = 0; first < experts; first += kWarpLanes) {
    const uint32_t expert = first + warp::lane();
    const uint32_t tokens = expert < experts ? call.params.tokens_per_expert[expert] : 0;
    const uint32_t rows = (tokens + alignment - 1) / alignment * alignment;
    const uint32_t before = begin + warp::exclusive_sum(rows);
    if (expert < experts) call.tail.offsets()[expert] = before;
    begin = warp::shuffle(before + rows, kWarpLanes - 1);
  }
  if (warp::lane() == 0) call.tail.offsets()[experts] = begin;
}

/// By the whole block: picks an expert, of the rows before the block's, and of each of its warps.
DEVICE void count_picks(const Expand& call) {
  const ExpandParams& params = call.params;
  const size_t before = size_t{call.of_block().begin} * params.topk;
  const auto count = [&](uint32_t* counts, size_t pick) {
    const int32_t id = params.ids[pick];
    if (id >= 0) add<Order::relaxed, Scope::block>(counts + id, 1);
  };
  for (size_t pick = thread::index(); pick < before; pick += block::threads())
    count(call.tail.before(), pick);
  const Expand::Range rows = call.of_warp();
  for (size_t pick = size_t{rows.begin} * params.topk + warp::lane();
       pick < size_t{rows.end} * params.topk; pick += kWarpLanes)
    count(call.tail.of_warp(warp::index()), pick);
}

/// By the whole block, between meetings: a warp's counts become its next places.
DEVICE void find_next_places(const Expand& call) {
  for (uint32_t expert = thread::index(); expert < call.tail.local_experts;
       expert += block::threads()) {
    uint32_t next = call.tail.offsets()[expert] + call.tail.before()[expert];
    for (uint32_t warp = 0; warp < call.tail.warps; ++warp) {
      uint32_t& of_warp = call.tail.of_warp(warp)[expert];
      const uint32_t rows = of_warp;
      of_warp = next;
      next += rows;
    }
  }
}

/// By each warp: its rows' places. A step looks at as many rows as fit, a lane a pick; lower lanes
/// hold the earlier rows.
DEVICE void assign_places(const Expand& call) {
  const ExpandParams& params = call.params;
  const ExpertRowsLayout& layout = params.layout;
  auto* const slots = call.at<int32_t>(layout.slots_at());
  auto* const row_of = call.at<int32_t>(layout.row_of_at());
  auto* const weights = call.at<float>(layout.weights_at());
  uint32_t* const next = call.tail.of_warp(warp::index());
  const Expand::Range rows = call.of_warp();
  const size_t end = size_t{rows.end} * params.topk;
  for (size_t first = size_t{rows.begin} * params.topk; first < end; first += kWarpLanes) {
    const size_t pick = first + warp::lane();
    const int32_t id = pick < end ? params.ids[pick] : -1;
    // A row has an expert at most once, so picks that match are of different rows.
    const uint32_t same =
        warp::match(id >= 0 ? static_cast<uint32_t>(id) : 0xffffffffu - warp::lane());
    const uint32_t earlier = population(same & lanes_below());
    const uint32_t place = id >= 0 ? next[id] + earlier : 0;
    warp::sync();
    if (id >= 0 && earlier == 0) next[id] += population(same);
    warp::sync();
    if (pick < end) slots[pick] = id >= 0 ? static_cast<int32_t>(place) : -1;
    if (id < 0) continue;
    row_of[place] = static_cast<int32_t>(pick / params.topk);
    weights[place] = params.weights[pick];
  }
}

/// By each warp that copies no rows: the scales of the block's rows to their places.
DEVICE void copy_scales(const Expand& call, uint32_t crew, uint32_t crews) {
  const ExpandParams& params = call.params;
  const ExpertRowsLayout& layout = params.layout;
  if (layout.scale_words == 0) return;
  const auto* const slots = call.at<const int32_t>(layout.slots_at());
  auto* const scales = call.at<uint32_t>(layout.scales_at());
  const Expand::Range rows = call.of_block();
  for (uint32_t row = rows.begin + crew; row < rows.end; row += crews) {
    for (uint32_t pick = 0; pick < params.topk; ++pick) {
      const int32_t place = slots[size_t{row} * params.topk + pick];
      if (place < 0) continue;
      for (uint32_t word = warp::lane(); word < layout.scale_words; word += kWarpLanes)
        scales[layout.scale_index(static_cast<uint32_t>(place), word)] =
            params.scales[size_t{row} * layout.scale_words + word];
    }
  }
}

/// By each warp that copies no rows: what lies beside padding.
DEVICE void mark_padding(const Expand& call, uint32_t crew, uint32_t crews) {
  const ExpertRowsLayout& layout = call.params.layout;
  auto* const row_of = call.at<int32_t>(layout.row_of_at());
  auto* const weights = call.at<float>(layout.weights_at());
  auto* const scales = call.at<uint32_t>(layout.scales_at());
  for_each_padding(call, block::index() * crews + crew, grid::blocks() * crews, [&](uint32_t row) {
    for (uint32_t word = warp::lane(); word < layout.scale_words; word += kWarpLanes)
      scales[layout.scale_index(row, word)] = 0;
    if (warp::lane() == 0) row_of[row] = -1;
    if (warp::lane() == 0) weights[row] = 0;
  });
}

/// By some threads of block 0: where experts begin, and the marks of places after the last one.
DEVICE void write_offsets(const Expand& call, throughput::Crew crew) {
  const ExpertRowsLayout& layout = call.params.layout;
  auto* const offsets = call.at<int32_t>(layout.offsets_at());
  for (uint32_t expert = crew.index; expert <= layout.local_experts; expert += crew.size)
    offsets[expert] = static_cast<int32_t>(call.tail.offsets()[expert]);
  for (uint32_t row = call.tail.offsets()[layout.local_experts] + crew.index; row < layout.rows;
       row += crew.size) {
    call.at<int32_t>(layout.row_of_at())[row] = -1;
    call.at<float>(layout.weights_at())[row] = 0;
  }
}

/// By the whole block, which then has to meet.
DEVICE void ready_expand(const ExpandParams& params, ExpandShared& shared, const ExpandTail& tail) {
  for (uint32_t i = thread::index(); i < tail.zeroed_word_count(); i += block::threads())
    tail.zeroed_words()[i] = 0;
  if (thread::index() == 0)
    for (uint32_t stage = 0; stage < params.movers * params.plan.stages; ++stage)
      shared.full[stage].init(1);
  fence_async();  // For the completions, and for the zeros that bulk copies read.
}

DEVICE void expand_rows(const ExpandParams& params) {
  auto& shared = block::shared<ExpandShared>();
  ExpandTail tail{.warps = block::threads() / kWarpLanes,
                  .local_experts = params.layout.local_experts,
                  .stages_bytes = params.movers * params.plan.stages * params.plan.stage_bytes};
  tail.base = block::shared_tail<ExpandShared>();
  const Deadline deadline = params.patience.start();
  ready_expand(params, shared, tail);
  // After a dispatch that failed there are no ids that could be trusted.
  if (block::any(deadline.failed())) return;
  const Expand call{params, shared, tail, deadline};
  if (warp::index() == 0) find_offsets(call);
  block::sync();
  const uint32_t rows = tail.offsets()[params.layout.local_experts];
  if (rows > params.layout.rows) {
    if (block::index() == 0 && thread::index() == 0)
      deadline.fail(
          Failure::refused,
          Awaited{.phase = kTooFewPlaces, .rank = 0, .expected = rows, .seen = params.layout.rows});
    return;
  }
  count_picks(call);
  block::sync();
  find_next_places(call);
  block::sync();
  assign_places(call);
  block::sync();
  if (warp::index() < params.movers) {
    spread_rows(call);
    return;
  }
  const uint32_t crew = warp::index() - params.movers, crews = tail.warps - params.movers;
  copy_scales(call, crew, crews);
  mark_padding(call, crew, crews);
  if (block::index() == 0)
    write_offsets(call, {thread::index() - params.movers * kWarpLanes, crews * kWarpLanes});
}

DEFINE_KERNEL(expand_rows_kernel, expand_rows, ExpandParams, ExpandShared, kExpandThreadsMax)

}  // namespace tokenyard::expert_major
