/// The combine kernel. See combine.hpp for the protocol.
#pragma once

#include "device/apart.hpp"
#include "expert_parallel/throughput/kernels/call_kernel.hpp"
#include "expert_parallel/throughput/kernels/combine_weights_kernel.hpp"
#include "expert_parallel/throughput/kernels/fetch_rows_kernel.hpp"
#include "expert_parallel/throughput/kernels/prepare_rows_kernel.hpp"
#include "expert_parallel/throughput/kernels/sum_rows_kernel.hpp"

namespace tokenyard::throughput {

/// Initializes the rings. Called by the whole block, which must synchronize afterwards.
TOKENYARD_DEVICE void ready_rings(const CombineParams& params, CombineShared& shared) {
  const uint32_t summers = CombineWarp::mine(params).summers;
  for (uint32_t i = thread::index(); i < params.groups * params.stages_most();
       i += block::threads()) {
    shared.full[i].init(1);
    shared.empty[i].init(summers * kWarpLanes);
    shared.named[i].init(1);
  }
  if (thread::index() == 0) shared.unread = 0;
  fence_async_shared();
}

/// Returns the number of threads of a pulling block that read other ranks' memory.
TOKENYARD_DEVICE uint32_t readers_of(const CombineParams& params) {
  return (params.groups + 1) * kWarpLanes;
}

/// Records that a reader has given up, before the readers synchronize. Relaxed: the flag is read
/// after that barrier.
TOKENYARD_DEVICE void note_unread(const Combine& call) {
  if (warp::lane() == 0) store<Order::relaxed, Scope::block>(&call.shared.unread, 1);
}

/// Signals `finished` once all of the block's rows have been read, even if they have not been
/// summed; then they may be overwritten. Called by the warp that fetches weights, after those. The
/// barrier orders the other readers' completed loads before the release in say_finished. If a
/// reader gave up, `finished` is withheld.
TOKENYARD_DEVICE void say_all_read(const Combine& call) {
  NamedBarrier(CombineBarrier::all_read).sync(readers_of(call.params));
  if (load<Order::relaxed, Scope::block>(&call.shared.unread) == 0)
    say_finished(call.params.call, call.shared.call, ThreadGroup::of_warp());
}

TOKENYARD_DEVICE void combine(const CombineParams& params) {
  grid::wait_for_previous();
  auto& shared = block::shared<CombineShared>();
  CombineTail tail = CombineTail::of(params);
  tail.base = block::shared_tail<CombineShared>();
  const CallDeadline deadline(params.call.wait_context);
  ready_rings(params, shared);
  for (uint32_t i = thread::index(); i < kWaitWords * params.call.ranks; i += block::threads())
    tail.waits().words[i] = 0;
  if (block::index() >= pullers_of(params)) ready_preparation(params, shared, tail);
  if (!begin_call(params.call, shared.call, deadline)) return;

  const uint32_t epoch = shared.call.epoch, route_epoch = shared.call.route_epoch;
  const Combine call{params, shared, tail, deadline, epoch, route_epoch};
  if (sets_ready()) set_ready(params.call, epoch, route_epoch);
  // The first routes are loaded while the ready words are awaited.
  const CombineWarp mine = CombineWarp::mine(params);
  ComingRows coming(call, mine);
  // By a thread that no other waits for.
  if (thread::index() + 1 == block::threads()) pass_epoch(params.call, epoch);
  if (!await_ready_words(params.call, call.ready_words(), tail.waits(), deadline, epoch,
                         Phase::combine_ready))
    return;
  if (thread::index() == 0) note(params.call, shared.call, Moment::greeted);
  if (mine.group == params.groups) {
    if (call.prepares()) publish_of_rows(call);
    combine_weights(call);
    if (!call.prepares()) say_all_read(call);
  } else if (call.prepares()) {
    prepare_rows(call, mine);
  } else if (mine.fetches()) {
    const CombineRing ring = CombineRing::of(call, mine.group);
    RingPosition at;
    if (!fetch_rows(call, ring, coming, at)) note_unread(call);
    NamedBarrier(CombineBarrier::all_read).arrive(readers_of(params));
    if (thread::index() == 0) note(params.call, shared.call, Moment::moved);
    say_over(call, ring, at);
  } else {
    sum_rows(call, mine);
  }
  if (block::any(deadline.failed())) return;  // A failed block must not signal finished.
  if (call.prepares()) say_finished(params.call, shared.call, ThreadGroup::of_block());
  end_call(params.call, shared.call, call.ready_words(), tail.waits(), deadline,
           Phase::combine_pulls, Unwatched{});
}

TOKENYARD_DEFINE_KERNEL(combine_kernel, combine, CombineParams, CombineShared, kCombineThreadsMax)

}  // namespace tokenyard::throughput
