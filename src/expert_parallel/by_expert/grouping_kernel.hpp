/// How a block gives its rows their places by expert: an expert's rows come in the order in which
/// they were received, so a row's place is the expert's first row and the number of rows before it
/// that have this expert too. Those of earlier blocks are in the tail already; the rest is counted.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/by_expert/grouping.hpp"
#include "expert_parallel/throughput/kernels/thread_group.hpp"

namespace tokenyard::expert_major {

struct RowRange {
  uint32_t begin, end;

  DEVICE RowRange part(uint32_t index, uint32_t parts) const {
    const uint32_t each = (end - begin + parts - 1) / parts;
    const uint32_t first = std::min(begin + index * each, end);
    return {first, std::min(first + each, end)};
  }
};

/// Grouping as a block sees it.
struct Group {
  const Grouping& rows;
  const GroupTail& tail;
  uint32_t first_placer;  ///< warp of the block

  DEVICE uint32_t placer() const { return warp::index() - first_placer; }
  DEVICE uint32_t places_used() const { return tail.offsets()[tail.local_experts]; }
  /// More rows, padding included, than there is room for: then nothing is stored.
  DEVICE bool too_many() const { return places_used() > rows.layout.rows; }
};

/// By a warp: `body(row)`, by all its lanes, for every crews-th row of padding, which lies between
/// an expert's last row and the next expert's first. Each lane looks at an expert, for most have
/// little padding or none for this warp.
template <class Body>
DEVICE void for_each_padding(const Group& group, uint32_t thread_group, uint32_t thread_groups,
                             Body body) {
  const uint32_t experts = group.tail.local_experts;
  for (uint32_t first = 0; first < experts; first += kWarpLanes) {
    const uint32_t expert = first + warp::lane();
    uint32_t row = 0, end = 0;
    if (expert < experts) {
      const uint32_t begin = group.tail.offsets()[expert] + group.tail.tokens()[expert];
      row = begin + (thread_group + thread_groups - begin % thread_groups) % thread_groups;
      end = group.tail.offsets()[expert + 1];
    }
    for (uint32_t waiting; (waiting = warp::ballot(row < end)) != 0;) {
      const uint32_t lane = first_bit(waiting);
      body(warp::shuffle(row, lane));
      if (warp::lane() == lane) row += thread_groups;
    }
  }
}

/// By one warp, once the tail knows how many rows each expert has: where they begin.
DEVICE void find_offsets(const Group& group) {
  const uint32_t experts = group.tail.local_experts, alignment = group.rows.alignment;
  uint32_t begin = 0;
  for (uint32_t first = 0; first < experts; first += kWarpLanes) {
    const uint32_t expert = first + warp::lane();
    const uint32_t tokens = expert < experts ? group.tail.tokens()[expert] : 0;
    const uint32_t rows = (tokens + alignment - 1) / alignment * alignment;
    const uint32_t before = begin + warp::exclusive_sum(rows);
    if (expert < experts) group.tail.offsets()[expert] = before;
    begin = warp::shuffle(before + rows, kWarpLanes - 1);
  }
  if (warp::lane() == 0) group.tail.offsets()[experts] = begin;
}

inline constexpr uint32_t kNoId = 0xffffffff;  ///< -1: a row that picked fewer experts

/// `count` an expert that a row has picked.
DEVICE void count_choice(const Group& group, uint32_t* counts, size_t choice) {
  const int32_t id = group.rows.ids[choice];
  if (id >= 0) add<Order::relaxed, Scope::block>(counts + id, 1);
}

/// By threads of a crew: picks an expert from `begin` to `end`. Ids are loaded four at a time, and
/// several fours at once: each load comes from a cache that writes of whole rows keep busy.
DEVICE void count_choices_between(const Group& group, uint32_t* counts, size_t begin, size_t end,
                                  throughput::ThreadGroup thread_group) {
  constexpr uint32_t kFour = 4, kAtOnce = 4;
  const auto* const fours = reinterpret_cast<const Bytes16*>(group.rows.ids);
  const size_t last = end / kFour, first = std::min((begin + kFour - 1) / kFour, last);
  for (size_t at = first + thread_group.index; at < last;
       at += kAtOnce * size_t{thread_group.size}) {
    Bytes16 ids[kAtOnce];
    UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const size_t four = at + i * size_t{thread_group.size};
      if (four < last)
        ids[i] = load_vector(fours + four);
      else
        ids[i] = {{kNoId, kNoId, kNoId, kNoId}};
    }
    UNROLL
    for (const Bytes16& four : ids) {
      UNROLL
      for (const uint32_t id : four.word)
        if (static_cast<int32_t>(id) >= 0) add<Order::relaxed, Scope::block>(counts + id, 1);
    }
  }
  // What lies before the first four and after the last.
  for (size_t choice = begin + thread_group.index; choice < std::min(first * kFour, end);
       choice += thread_group.size)
    count_choice(group, counts, choice);
  for (size_t choice = std::max(last * kFour, begin) + thread_group.index; choice < end;
       choice += thread_group.size)
    count_choice(group, counts, choice);
}

/// By each placer: picks an expert of its rows.
DEVICE void count_choices(const Group& group, RowRange mine) {
  const uint32_t topk = group.rows.topk;
  for (size_t choice = size_t{mine.begin} * topk + warp::lane(); choice < size_t{mine.end} * topk;
       choice += kWarpLanes)
    count_choice(group, group.tail.of_warp(group.placer()), choice);
}

/// By all placers, between meetings: a warp's counts become its next places.
DEVICE void find_next_places(const Group& group, throughput::ThreadGroup thread_group) {
  for (uint32_t expert = thread_group.index; expert < group.tail.local_experts;
       expert += thread_group.size) {
    uint32_t next = group.tail.offsets()[expert] + group.tail.before()[expert];
    for (uint32_t placer = 0; placer < group.tail.placers; ++placer) {
      uint32_t& of_warp = group.tail.of_warp(placer)[expert];
      const uint32_t rows = of_warp;
      of_warp = next;
      next += rows;
    }
  }
}

/// By each placer: its rows' places. A step looks at as many rows as fit, a lane a pick; lower
/// lanes hold the earlier rows.
DEVICE void assign_places(const Group& group, RowRange mine) {
  const Grouping& rows = group.rows;
  auto* const slots = rows.at<int32_t>(rows.layout.slots_at());
  auto* const row_of = rows.at<int32_t>(rows.layout.row_of_at());
  auto* const weights = rows.at<float>(rows.layout.weights_at());
  uint32_t* const next = group.tail.of_warp(group.placer());
  const size_t end = size_t{mine.end} * rows.topk;
  for (size_t first = size_t{mine.begin} * rows.topk; first < end; first += kWarpLanes) {
    const size_t choice = first + warp::lane();
    const int32_t id = choice < end ? rows.ids[choice] : -1;
    // A row has an expert at most once, so picks that match are of different rows.
    const uint32_t same =
        warp::match(id >= 0 ? static_cast<uint32_t>(id) : 0xffffffffu - warp::lane());
    const uint32_t earlier = population(same & lanes_below());
    const uint32_t place = id >= 0 ? next[id] + earlier : 0;
    warp::sync();
    if (id >= 0 && earlier == 0) next[id] += population(same);
    warp::sync();
    if (choice < end) slots[choice] = id >= 0 ? static_cast<int32_t>(place) : -1;
    if (id < 0) continue;
    row_of[place] = static_cast<int32_t>(choice / rows.topk);
    weights[place] = rows.weights[choice];
  }
}

/// By each warp of some: the scales of rows to their places, which are known.
DEVICE void copy_scales(const Group& group, RowRange mine, uint32_t thread_group,
                        uint32_t thread_groups) {
  const Grouping& rows = group.rows;
  const ExpertRowsLayout& layout = rows.layout;
  if (layout.scale_words == 0) return;
  const auto* const slots = rows.at<const int32_t>(layout.slots_at());
  auto* const scales = rows.at<uint32_t>(layout.scales_at());
  for (uint32_t row = mine.begin + thread_group; row < mine.end; row += thread_groups) {
    for (uint32_t choice = 0; choice < rows.topk; ++choice) {
      const int32_t place = slots[size_t{row} * rows.topk + choice];
      if (place < 0) continue;
      for (uint32_t word = warp::lane(); word < layout.scale_words; word += kWarpLanes)
        scales[layout.scale_index(static_cast<uint32_t>(place), word)] =
            rows.scales[size_t{row} * layout.scale_words + word];
    }
  }
}

/// By each warp of some in every block: what lies beside padding.
DEVICE void mark_padding(const Group& group, uint32_t thread_group, uint32_t thread_groups) {
  const Grouping& rows = group.rows;
  const ExpertRowsLayout& layout = rows.layout;
  auto* const row_of = rows.at<int32_t>(layout.row_of_at());
  auto* const weights = rows.at<float>(layout.weights_at());
  auto* const scales = rows.at<uint32_t>(layout.scales_at());
  for_each_padding(group, block::index() * thread_groups + thread_group,
                   grid::blocks() * thread_groups, [&](uint32_t row) {
                     for (uint32_t word = warp::lane(); word < layout.scale_words;
                          word += kWarpLanes)
                       scales[layout.scale_index(row, word)] = 0;
                     if (warp::lane() == 0) row_of[row] = -1;
                     if (warp::lane() == 0) weights[row] = 0;
                   });
}

/// By some threads of block 0: where experts begin, and the marks of places after the last one.
DEVICE void write_offsets(const Group& group, throughput::ThreadGroup thread_group) {
  const Grouping& rows = group.rows;
  const ExpertRowsLayout& layout = rows.layout;
  auto* const offsets = rows.at<int32_t>(layout.offsets_at());
  for (uint32_t expert = thread_group.index; expert <= layout.local_experts;
       expert += thread_group.size)
    offsets[expert] = static_cast<int32_t>(group.tail.offsets()[expert]);
  for (uint32_t row = group.places_used() + thread_group.index; row < layout.rows;
       row += thread_group.size) {
    rows.at<int32_t>(layout.row_of_at())[row] = -1;
    rows.at<float>(layout.weights_at())[row] = 0;
  }
}

/// By each warp of some in every block: zeros to every row of padding, if they are wanted, a lane a
/// piece. Not awaited.
DEVICE void clear_padding(const Group& group, uint32_t thread_group, uint32_t thread_groups) {
  if (!group.rows.clear_padding) return;
  const uint32_t row_bytes = group.rows.layout.row_bytes;
  auto* const x = group.rows.at<std::byte>(group.rows.layout.x_at());
  for_each_padding(group, block::index() * thread_groups + thread_group,
                   grid::blocks() * thread_groups, [&](uint32_t row) {
                     for (uint32_t at = warp::lane() * kZeroBytes; at < row_bytes;
                          at += kWarpLanes * kZeroBytes) {
                       const uint32_t left = row_bytes - at;
                       bulk::store(x + size_t{row} * row_bytes + at, group.tail.zeros(),
                                   left < kZeroBytes ? left : kZeroBytes);
                     }
                   });
  bulk::commit();
}

}  // namespace tokenyard::expert_major
