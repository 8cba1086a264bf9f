/// The dispatch kernel. See dispatch.hpp for the protocol.
#pragma once

#include "device/apart.hpp"
#include "expert_parallel/throughput/kernels/begin_dispatch_kernel.hpp"
#include "expert_parallel/throughput/kernels/scales_kernel.hpp"

namespace tokenyard::throughput {

using Mover = RowMover<Arrivals::by_block>;

/// Called by all warps that move no rows.
TOKENYARD_DEVICE void move_metadata(const Dispatch& call) {
  // Not before the block synchronizes: movers need no places and must not wait for them.
  if (warp::index() == call.last_other()) find_places(call);
  NamedBarrier(DispatchBarrier::counted).sync(call.others().size);
  if (call.params.call.kind == CallKind::dispatch_again) {
    send_scales(call, call.params.table.rows_on());
    return;
  }
  sum_experts(call, experts_summed(call));
  if (call.params.awaited && block::index() == 0 && warp::index() == call.last_other())
    report_counts(call);
  send_metadata(call);
  send_scales(call, call.tail.rows_on());
  mark_padding(call);
}

/// Does this warp's part; returns false if this warp knows that the call has failed. Called by the
/// whole block.
TOKENYARD_DEVICE bool move(const Dispatch& call, Mover& mover, bool routed) {
  const CallParams& params = call.params.call;
  if (!call.moves_rows()) {
    if (routed) move_metadata(call);
    if (call.others().index == 0) note(params, call.shared.call, Moment::published);
    return !call.deadline.failed();
  }
  const bool moved = routed && mover.move_all(call);
  if (thread::index() == 0) note(params, call.shared.call, Moment::moved);
  return moved || end_unmoved(call, mover);
}

TOKENYARD_DEVICE void dispatch(const DispatchParams& params) {
  grid::wait_for_previous();
  auto& shared = block::shared<DispatchShared>();
  DispatchTail tail = DispatchTail::of(params, block::threads() / kWarpLanes);
  tail.base = block::shared_tail<DispatchShared>();
  const CallDeadline deadline(params.call.wait_context);
  const bool counts = params.call.kind != CallKind::dispatch_again;
  // These loads and those of begin_call overlap: each takes longer than the work in between.
  TokenChoices choices(params, counts ? tokens_of_warp(params) : TokenRange{0, 0});
  ready_shared_memory(params, shared, tail);
  if (!begin_call(params.call, shared.call, deadline)) return;

  const uint32_t epoch = shared.call.epoch, route_epoch = shared.call.route_epoch;
  Mover mover(params, shared, tail);
  const Dispatch call{params, shared, tail, deadline, epoch, route_epoch};
  bool sound = true;
  if (call.moves_rows())
    sound = open_dispatch(call, mover);
  else if (counts)
    sound = count(call, choices);
  const bool known = !block::any(!sound);
  if (thread::index() == 0) note(params.call, shared.call, Moment::known);
  // By a thread that no other waits for.
  if (thread::index() + 1 == block::threads()) pass_epoch(params.call, epoch);

  const bool routed = known && find_routes(call, choices.tokens());
  // A block that has not done its part must not signal that it has finished.
  if (block::any(!move(call, mover, routed))) return;
  say_finished(params.call, shared.call, ThreadGroup::of_block());
  if (counts && routed) keep_counts(call, experts_summed(call));
  end_call(params.call, shared.call, call.ready_words(), tail.waits(), deadline,
           Phase::dispatch_arrivals,
           Watched(params.readiness, params.call.absent, deadline, counts));
}

TOKENYARD_DEFINE_KERNEL(dispatch_kernel, dispatch, DispatchParams, DispatchShared,
                        kDispatchThreadsMax)

}  // namespace tokenyard::throughput
