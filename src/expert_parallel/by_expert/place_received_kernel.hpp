/// How received rows get their places while rows are under way: each block of this rank takes some
/// blocks of the sources, in their order, and awaits only what travels beside their rows.
#pragma once

#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/by_expert/grouping_kernel.hpp"
#include "expert_parallel/throughput/kernels/counts_kernel.hpp"
#include "expert_parallel/throughput/kernels/report_kernel.hpp"

namespace tokenyard::expert_major {

using throughput::Dispatch;
using throughput::ThreadGroup;

/// A source and one of its blocks.
struct Slots {
  uint32_t begin, end;

  /// Those whose rows a block places.
  DEVICE static Slots of_block(const Dispatch& call) {
    const throughput::CallParams& params = call.params.call;
    const uint32_t slots = params.ranks * params.control.layout.blocks_max;
    const uint32_t each = (slots + grid::blocks() - 1) / grid::blocks();
    const uint32_t begin = std::min(block::index() * each, slots);
    return {begin, std::min(begin + each, slots)};
  }
};

/// Relaxed: whoever asks has met since. (Deadline::failed may change its mind between two warps of
/// a block, and they would part before a barrier.)
DEVICE void note_lost(uint32_t& lost) {
  store<Order::relaxed, Scope::block>(&lost, 1);
}

/// By all warps that move no rows: rows of each expert, in all and from slots before this block's.
/// Ends with a meeting of theirs.
DEVICE void count_rows_of_experts(const Dispatch& call, const Group& group) {
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

/// By one warp, which has heard of all counts: where the rows of each source begin, and which rows
/// this block places.
DEVICE void find_rows(const Dispatch& call, const Group& group) {
  const throughput::CallParams& params = call.params.call;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const uint32_t slots = params.ranks * blocks_max;
  const Slots mine = Slots::of_block(call);
  uint32_t begin = 0;
  for (uint32_t first = 0; first < slots; first += kWarpLanes) {
    const uint32_t slot = first + warp::lane();
    const uint32_t source = slot / blocks_max, source_block = slot % blocks_max;
    uint32_t rows = 0;
    // Relaxed: gather_counts has seen the word already.
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

/// By all warps that move no rows, once they have sent what travels beside the block's rows, and
/// met. Release: it is there.
DEVICE void publish_of_metadata(const Dispatch& call) {
  const throughput::CallParams& params = call.params.call;
  const ThreadGroup thread_group = call.others();
  for (uint32_t rank = thread_group.index; rank < params.ranks; rank += thread_group.size)
    store<Order::release, Scope::sys>(params.control.published(rank, params.rank, block::index()),
                                      call.epoch);
}

/// By all warps that move no rows, who then meet: awaits what travels beside the rows that this
/// block places. Acquire: it is read from here on.
DEVICE void await_metadata(const Dispatch& call, const Group& group) {
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

/// By all warps that move no rows: gives the block's rows their places, and says so to the other
/// blocks. False if the call has failed.
DEVICE bool place_rows(const Dispatch& call, const Group& group) {
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
  // Release: movers of all blocks read the places, and source tokens that came with them.
  if (thread_group.index == 0)
    add<Order::release, Scope::gpu>(&call.params.call.workspace->placed[call.epoch & 1], 1);
  return true;
}

/// By each mover: all blocks have given their rows places. False if the call has failed.
DEVICE bool await_places(const Dispatch& call) {
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
