/// The kernel that groups received rows by expert; expand_rows.hpp tells how.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "expert_parallel/expert_major/expand_rows.hpp"

namespace tokenyard::expert_major {

struct Expand {
  const ExpandParams& params;
  const ExpandTail& tail;

  template <class T>
  DEVICE T* at(size_t offset) const {
    return reinterpret_cast<T*>(params.to + offset);
  }
  /// The rows of this block, or of one of its warps.
  struct Range {
    uint32_t begin, end;
  };
  DEVICE Range of_block() const {
    const uint32_t each = (params.rows + grid::blocks() - 1) / grid::blocks();
    const uint32_t begin = std::min(block::index() * each, params.rows);
    return {begin, std::min(begin + each, params.rows)};
  }
  DEVICE Range of_warp() const {
    const Range range = of_block();
    const uint32_t each = (range.end - range.begin + tail.warps - 1) / tail.warps;
    const uint32_t begin = std::min(range.begin + warp::index() * each, range.end);
    return {begin, std::min(begin + each, range.end)};
  }
};

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

/// By one warp: a row to its places.
DEVICE void copy_row(const Expand& call, uint32_t row) {
  const ExpandParams& params = call.params;
  const ExpertRowsLayout& layout = params.layout;
  const auto* const slots = call.at<const int32_t>(layout.slots_at()) + size_t{row} * params.topk;
  const int32_t mine = warp::lane() < params.topk ? slots[warp::lane()] : -1;
  const uint32_t wanted = warp::ballot(mine >= 0);
  if (wanted == 0) return;
  const uint32_t pieces = layout.row_bytes / sizeof(Bytes16);
  const auto* const from = reinterpret_cast<const Bytes16*>(params.x) + size_t{row} * pieces;
  auto* const to = call.at<Bytes16>(layout.x_at());
  constexpr uint32_t kAhead = 4;
  for (uint32_t first = 0; first < pieces; first += kAhead * kWarpLanes) {
    Bytes16 values[kAhead];
    const auto piece = [&](uint32_t i) { return first + i * kWarpLanes + warp::lane(); };
    for (uint32_t i = 0; i < kAhead; ++i)
      if (piece(i) < pieces) values[i] = load_vector(from + piece(i));
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
      const auto place = static_cast<size_t>(warp::shuffle(mine, first_bit(left)));
      for (uint32_t i = 0; i < kAhead; ++i)
        if (piece(i) < pieces) store_vector(to + place * pieces + piece(i), values[i]);
    }
  }
  auto* const scales = call.at<uint32_t>(layout.scales_at());
  for (uint32_t left = wanted; left != 0; left &= left - 1) {
    const auto place = static_cast<uint32_t>(warp::shuffle(mine, first_bit(left)));
    for (uint32_t word = warp::lane(); word < layout.scale_words; word += kWarpLanes)
      scales[layout.scale_index(place, word)] =
          params.scales[size_t{row} * layout.scale_words + word];
  }
}

/// By each warp of the grid, an expert at a time: zeros from its last row to the next expert's.
DEVICE void clear_padding(const Expand& call) {
  const ExpertRowsLayout& layout = call.params.layout;
  auto* const row_of = call.at<int32_t>(layout.row_of_at());
  auto* const weights = call.at<float>(layout.weights_at());
  auto* const x = call.at<Bytes16>(layout.x_at());
  auto* const scales = call.at<uint32_t>(layout.scales_at());
  const uint32_t pieces = layout.row_bytes / sizeof(Bytes16), experts = layout.local_experts;
  const uint32_t stride = grid::blocks() * call.tail.warps;
  for (uint32_t expert = block::index() * call.tail.warps + warp::index(); expert < experts;
       expert += stride) {
    const uint32_t begin = call.tail.offsets()[expert] + call.params.tokens_per_expert[expert];
    for (uint32_t row = begin; row < call.tail.offsets()[expert + 1]; ++row) {
      for (uint32_t piece = warp::lane(); piece < pieces; piece += kWarpLanes)
        store_vector(x + size_t{row} * pieces + piece, Bytes16{});
      for (uint32_t word = warp::lane(); word < layout.scale_words; word += kWarpLanes)
        scales[layout.scale_index(row, word)] = 0;
      if (warp::lane() == 0) row_of[row] = -1;
      if (warp::lane() == 0) weights[row] = 0;
    }
  }
}

/// By block 0: where experts begin, and the marks of places after the last one.
DEVICE void write_offsets(const Expand& call) {
  const ExpertRowsLayout& layout = call.params.layout;
  auto* const offsets = call.at<int32_t>(layout.offsets_at());
  for (uint32_t expert = thread::index(); expert <= layout.local_experts;
       expert += block::threads())
    offsets[expert] = static_cast<int32_t>(call.tail.offsets()[expert]);
  for (uint32_t row = call.tail.offsets()[layout.local_experts] + thread::index();
       row < layout.rows; row += block::threads()) {
    call.at<int32_t>(layout.row_of_at())[row] = -1;
    call.at<float>(layout.weights_at())[row] = 0;
  }
}

DEVICE void expand_rows(const ExpandParams& params) {
  ExpandTail tail{.warps = block::threads() / kWarpLanes,
                  .local_experts = params.layout.local_experts};
  tail.base = block::shared_tail<NoShared>();
  const Deadline deadline = params.patience.start();
  for (uint32_t i = thread::index(); i < tail.word_count(); i += block::threads())
    tail.offsets()[i] = 0;
  // After a dispatch that failed there are no ids that could be trusted.
  if (block::any(deadline.failed())) return;
  const Expand call{params, tail};
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
  const Expand::Range mine = call.of_block();
  for (uint32_t row = mine.begin + warp::index(); row < mine.end; row += tail.warps)
    copy_row(call, row);
  clear_padding(call);
  if (block::index() == 0) write_offsets(call);
}

DEFINE_KERNEL(expand_rows_kernel, expand_rows, ExpandParams, NoShared, kExpandThreadsMax)

}  // namespace tokenyard::expert_major
