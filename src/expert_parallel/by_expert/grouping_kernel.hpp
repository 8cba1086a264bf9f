/// Assigns rows their places by expert. An expert's rows keep the order in which they were
/// received, so a row's place is the expert's first row plus the number of earlier rows of this
/// expert. The tail already holds the counts of earlier blocks; the rest is counted here.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/by_expert/grouping.hpp"
#include "expert_parallel/throughput/kernels/thread_group.hpp"

namespace tokenyard::expert_major {

struct RowRange {
  uint32_t begin, end;

  TOKENYARD_DEVICE RowRange part(uint32_t index, uint32_t parts) const {
    const uint32_t each = (end - begin + parts - 1) / parts;
    const uint32_t first = std::min(begin + index * each, end);
    return {first, std::min(first + each, end)};
  }
};

/// Grouping as one block sees it.
struct Group {
  const Grouping& rows;
  const GroupTail& tail;
  uint32_t first_placer;  ///< index of a warp in the block

  TOKENYARD_DEVICE uint32_t placer() const { return warp::index() - first_placer; }
  TOKENYARD_DEVICE uint32_t places_used() const { return tail.offsets()[tail.local_experts]; }
  /// Returns whether there are more rows, padding included, than places; then nothing is stored.
  TOKENYARD_DEVICE bool too_many() const { return places_used() > rows.layout.rows; }
};

/// Calls `body(row)` on all lanes for every thread_groups-th padding row, that is, from an expert's
/// last row to the next expert's first. Called by a warp. Each lane inspects one expert, since most
/// have little or no padding for this warp.
template <class Body>
TOKENYARD_DEVICE void for_each_padding(const Group& group, uint32_t thread_group,
                                       uint32_t thread_groups, Body body) {
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

/// Computes where each expert's rows begin. Called by one warp, once the tail has the rows per
/// expert.
TOKENYARD_DEVICE void find_offsets(const Group& group) {
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

inline constexpr uint32_t kNoId = 0xffffffff;  ///< -1: a row with fewer choices

/// Adds a choice to the count of its expert.
TOKENYARD_DEVICE void count_choice(const Group& group, uint32_t* counts, size_t choice) {
  const int32_t id = group.rows.ids[choice];
  if (id >= 0) add<Order::relaxed, Scope::block>(counts + id, 1);
}

/// Counts the choices from `begin` to `end` per expert. Called by a thread group. Ids are loaded
/// four at a time, and several fours at once: each load comes from a cache that whole-row writes
/// keep busy.
TOKENYARD_DEVICE void count_choices_between(const Group& group, uint32_t* counts, size_t begin,
                                            size_t end, throughput::ThreadGroup thread_group) {
  constexpr uint32_t kFour = 4, kAtOnce = 4;
  const auto* const fours = reinterpret_cast<const Bytes16*>(group.rows.ids);
  const size_t last = end / kFour, first = std::min((begin + kFour - 1) / kFour, last);
  for (size_t at = first + thread_group.index; at < last;
       at += kAtOnce * size_t{thread_group.size}) {
    Bytes16 ids[kAtOnce];
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const size_t four = at + i * size_t{thread_group.size};
      if (four < last)
        ids[i] = load_vector(fours + four);
      else
        ids[i] = {{kNoId, kNoId, kNoId, kNoId}};
    }
    TOKENYARD_UNROLL
    for (const Bytes16& four : ids) {
      TOKENYARD_UNROLL
      for (const uint32_t id : four.word)
        if (static_cast<int32_t>(id) >= 0) add<Order::relaxed, Scope::block>(counts + id, 1);
    }
  }
  // Choices before the first whole four and after the last.
  for (size_t choice = begin + thread_group.index; choice < std::min(first * kFour, end);
       choice += thread_group.size)
    count_choice(group, counts, choice);
  for (size_t choice = std::max(last * kFour, begin) + thread_group.index; choice < end;
       choice += thread_group.size)
    count_choice(group, counts, choice);
}

/// Counts the choices of this warp's rows per expert. Called by each placer.
TOKENYARD_DEVICE void count_choices(const Group& group, RowRange mine) {
  const uint32_t topk = group.rows.topk;
  for (size_t choice = size_t{mine.begin} * topk + warp::lane(); choice < size_t{mine.end} * topk;
       choice += kWarpLanes)
    count_choice(group, group.tail.of_warp(group.placer()), choice);
}

/// Turns each warp's counts into its next places. Called by all placers, between two barriers.
TOKENYARD_DEVICE void find_next_places(const Group& group, throughput::ThreadGroup thread_group) {
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

/// Assigns this warp's rows their places. Called by each placer. A step takes as many rows as fit,
/// one lane per choice; lower lanes hold earlier rows.
TOKENYARD_DEVICE void assign_places(const Group& group, RowRange mine) {
  const Grouping& rows = group.rows;
  auto* const slots = rows.at<int32_t>(rows.layout.slots_at());
  auto* const row_of = rows.at<int32_t>(rows.layout.row_of_at());
  auto* const weights = rows.at<float>(rows.layout.weights_at());
  uint32_t* const next = group.tail.of_warp(group.placer());
  const size_t end = size_t{mine.end} * rows.topk;
  for (size_t first = size_t{mine.begin} * rows.topk; first < end; first += kWarpLanes) {
    const size_t choice = first + warp::lane();
    const int32_t id = choice < end ? rows.ids[choice] : -1;
    // A row has an expert at most once, so equal ids belong to different rows.
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

/// Copies the scales of rows to their places, which are known. Called by each warp of a set of
/// warps.
TOKENYARD_DEVICE void copy_scales(const Group& group, RowRange mine, uint32_t thread_group,
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

/// Clears the scales, weight and row index of padding. Called by each warp of a set in every block.
TOKENYARD_DEVICE void mark_padding(const Group& group, uint32_t thread_group,
                                   uint32_t thread_groups) {
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

/// Writes the first row of each expert, and marks the places after the last expert. Called by some
/// threads of block 0.
TOKENYARD_DEVICE void write_offsets(const Group& group, throughput::ThreadGroup thread_group) {
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

/// Starts zeroing every padding row, if wanted, one lane per piece; does not wait. Called by each
/// warp of a set in every block.
TOKENYARD_DEVICE void clear_padding(const Group& group, uint32_t thread_group,
                                    uint32_t thread_groups) {
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
