/// Assigns received rows their places while rows are in flight: each block of this rank handles
/// some blocks of the sources, in order, and waits only for the metadata of their rows.
#pragma once

#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/by_expert/grouping_kernel.hpp"
#include "expert_parallel/throughput/kernels/counts_kernel.hpp"
#include "expert_parallel/throughput/kernels/report_kernel.hpp"

namespace tokenyard::expert_major {

using throughput::Dispatch;
using throughput::ThreadGroup;

/// A range of slots; a slot is one block of a source.
struct Slots {
  uint32_t begin, end;

  /// Returns the slots whose rows this block places.
  TOKENYARD_DEVICE static Slots of_block(const Dispatch& call) {
    const throughput::CallParams& params = call.params.call;
    const uint32_t slots = params.ranks * params.control.layout.blocks_max;
    const uint32_t each = (slots + grid::blocks() - 1) / grid::blocks();
    const uint32_t begin = std::min(block::index() * each, slots);
    return {begin, std::min(begin + each, slots)};
  }
};

/// Records a failed wait. Relaxed: readers have synchronized since. (They cannot use
/// Deadline::failed, which may change between two warps of a block and make them diverge before a
/// barrier.)
TOKENYARD_DEVICE void note_lost(uint32_t& lost) {
  store<Order::relaxed, Scope::block>(&lost, 1);
}

/// Counts the rows of each expert, in all and in slots before this block's. Called by all warps
/// that move no rows. Ends with a barrier among them.
TOKENYARD_DEVICE void count_rows_of_experts(const Dispatch& call, const Group& group) {
  const Slots slots = Slots::of_block(call);
  const ThreadGroup thread_group = call.others();
  const bool all_here = throughput::for_each_expert_count(
      call, {}, thread_group, [&](uint32_t slot, uint32_t expert, uint32_t tokens) {
        add<Order::relaxed, Scope::block>(group.tail.tokens() + expert, tokens);
        if (slot < slots.begin)
          add<Order::relaxed, Scope::block>(group.tail.before() + expert, tokens);
      });
  if (!all_here) note_lost(group.tail.counts_lost());
  NamedBarrier(throughput::DispatchBarrier::experts_summed).sync(thread_group.size);
  if (block::index() != 0) return;
  for (uint32_t expert = thread_group.index; expert < group.tail.local_experts;
       expert += thread_group.size)
    call.tail.expert_sums()[expert] = group.tail.tokens()[expert];
  NamedBarrier(throughput::DispatchBarrier::experts_summed).sync(thread_group.size);
}

/// Finds where the rows of each source begin and which rows this block places. Called by one warp
/// that has synchronized with all who awaited the counts.
TOKENYARD_DEVICE void find_rows(const Dispatch& call, const Group& group) {
  const throughput::CallParams& params = call.params.call;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const uint32_t slots = params.ranks * blocks_max;
  const Slots mine = Slots::of_block(call);
  uint32_t begin = 0;
  for (uint32_t first = 0; first < slots; first += kWarpLanes) {
    const uint32_t slot = first + warp::lane();
    const uint32_t source = slot / blocks_max, source_block = slot % blocks_max;
    uint32_t rows = 0;
    // Relaxed: gather_counts has already seen the word.
    if (slot < slots && source_block < call.ready_words().blocks(source))
      rows = load<Order::relaxed, Scope::sys>(
                 params.control.count(params.rank, source, source_block, params.rank))
                 .value;
    const uint32_t before = begin + warp::exclusive_sum(rows);
    begin = warp::shuffle(before + rows, kWarpLanes - 1);
    if (slot < slots && source_block == 0) group.tail.first_from()[source] = before;
    if (slot == mine.begin) group.tail.range()[0] = before;
    if (slot + 1 == mine.end) group.tail.range()[1] = before + rows;
  }
}

/// Signals that the block's metadata has been sent. Called by all warps that move no rows, after
/// they have sent it and synchronized. Release: orders the metadata before the word.
TOKENYARD_DEVICE void publish_of_metadata(const Dispatch& call) {
  const throughput::CallParams& params = call.params.call;
  const ThreadGroup thread_group = call.others();
  for (uint32_t rank = thread_group.index; rank < params.ranks; rank += thread_group.size) {
    if (params.absent.contains(rank) && !mutated()) continue;
    store<Order::release, Scope::sys>(params.control.published(rank, params.rank, block::index()),
                                      call.epoch);
  }
}

/// Waits for the metadata of the rows that this block places. Called by all warps that move no
/// rows, which then synchronize. Acquire: orders the metadata before our loads of it.
TOKENYARD_DEVICE void await_metadata(const Dispatch& call, const Group& group) {
  const throughput::CallParams& params = call.params.call;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const Slots slots = Slots::of_block(call);
  const ThreadGroup thread_group = call.others();
  for (uint32_t slot = slots.begin + thread_group.index; slot < slots.end;
       slot += thread_group.size) {
    const uint32_t source = slot / blocks_max, source_block = slot % blocks_max;
    if (source_block >= call.ready_words().blocks(source)) continue;
    Awaited what{.phase = static_cast<uint32_t>(throughput::Phase::dispatch_metadata),
                 .rank = source,
                 .expected = call.epoch};
    const bool published = wait_until(call.deadline, what, [&] {
      what.seen = load<Order::acquire, Scope::sys>(
          params.control.published(params.rank, source, source_block));
      return what.seen == what.expected;
    });
    if (!published) note_lost(group.tail.metadata_lost());
  }
}

/// Assigns the block's rows their places and signals this rank's other blocks. Called by all warps
/// that move no rows. Returns false if the call has failed.
TOKENYARD_DEVICE bool place_rows(const Dispatch& call, const Group& group) {
  const ThreadGroup thread_group = call.others();
  const auto meet = [&] {
    NamedBarrier(throughput::DispatchBarrier::counted).sync(thread_group.size);
  };
  await_metadata(call, group);
  meet();
  if (group.tail.metadata_lost() != 0) return false;
  const RowRange mine = RowRange{group.tail.range()[0], group.tail.range()[1]}.part(
      group.placer(), group.tail.placers);
  count_choices(group, mine);
  meet();
  find_next_places(group, thread_group);
  meet();
  assign_places(group, mine);
  meet();
  // Release: orders the places, and the source tokens acquired before, for movers of all blocks.
  if (thread_group.index == 0)
    add<Order::release, Scope::gpu>(&call.params.call.workspace->placed[call.epoch & 1], 1);
  return true;
}

/// Waits until all blocks have assigned places. Called by each mover. Acquire: pairs with
/// place_rows. Returns false if the call has failed.
TOKENYARD_DEVICE bool await_places(const Dispatch& call) {
  bool placed = true;
  if (warp::lane() == 0) {
    Awaited what{.phase = static_cast<uint32_t>(throughput::Phase::dispatch_places),
                 .rank = call.params.call.rank,
                 .expected = grid::blocks()};
    placed = wait_until(call.deadline, what, [&] {
      what.seen =
          load<Order::acquire, Scope::gpu>(&call.params.call.workspace->placed[call.epoch & 1]);
      return what.seen == what.expected;
    });
  }
  warp::sync();
  return warp::all(placed);
}

}  // namespace tokenyard::expert_major
