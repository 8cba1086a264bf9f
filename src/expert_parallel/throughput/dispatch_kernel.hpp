/// The dispatch kernel; dispatch.hpp tells how it works.
#pragma once

#include "expert_parallel/throughput/move_rows_kernel.hpp"
#include "expert_parallel/throughput/report_kernel.hpp"
#include "expert_parallel/throughput/scales_kernel.hpp"
#include "expert_parallel/throughput/slots_kernel.hpp"

namespace tokenyard::throughput {

/// By the whole block, which then has to meet.
DEVICE void ready_shared_memory(DispatchShared& shared, const DispatchTail& tail,
                                const StagePlan& plan) {
  for (uint32_t i = thread::index(); i < tail.word_count(); i += block::threads())
    tail.words()[i] = 0;
  if (thread::index() == 0) {
    shared.refused_token = kNothingRefused;
    shared.refusing_block = kNothingRefused;
    shared.full_rank = kNothingRefused;
    for (uint32_t stage = 0; stage < plan.stages; ++stage) shared.full[stage].init(1);
    fence_async();
  }
}

/// By the first warp of a block, while the others count: takes the epoch, greets the peers, starts
/// loading.
DEVICE void open_dispatch(const DispatchParams& params, DispatchShared& shared, RowMover& mover) {
  const uint32_t epoch = warp::once([&] { return shared.epoch = read_epoch(params.call); });
  if (block::index() == 0) say_hello(params.call, epoch);
  mover.load_own();
}

/// By the whole block: every rank's buffer, and every token's rows. False if the call has failed or
/// is refused; then nothing has moved and nothing will.
DEVICE bool find_routes(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const bool counting = params.kind == CallKind::dispatch;
  if (counting) publish_counts(call);
  if (!await_hellos(params, call.hellos(), call.tail.waits(), call.deadline, call.epoch,
                    Phase::dispatch_hello))
    return false;
  if (thread::index() == 0) note(params, Moment::greeted);
  if (!counting) {
    find_places(call, call.params.table.rows_on());
    block::sync();
    return true;
  }
  if (!gather_counts(call)) return false;
  if (thread::index() == 0) note(params, Moment::known);
  find_overflow(call);
  find_places(call, call.tail.rows_on());
  block::sync();
  if (call.refused()) return false;
  if (warp::index() != 0) assign_slots(call);
  block::sync();
  if (thread::index() == 0) note(params, Moment::routed);
  if (thread::index() == kWarpLanes) announce_routes(call);
  return true;
}

/// By all warps but the first, while it moves rows.
DEVICE void move_metadata(const Dispatch& call) {
  if (call.params.call.kind != CallKind::dispatch) {
    send_scales(call, call.params.table.rows_on());
    return;
  }
  if (block::index() == 0) report_counts(call);
  send_metadata(call);
  send_scales(call, call.tail.rows_on());
  mark_padding(call);
}

DEVICE void dispatch(const DispatchParams& params) {
  auto& shared = block::shared<DispatchShared>();
  DispatchTail tail = DispatchTail::of(params, block::threads() / kWarpLanes);
  tail.base = block::shared_tail<DispatchShared>();
  const Deadline deadline = params.call.patience.start();
  if (thread::index() == 0) note(params.call, Moment::begun);
  ready_shared_memory(shared, tail, params.plan);
  if (block::any(deadline.failed())) return;  // A call before this one has.

  RowMover mover(params, shared, tail);
  Dispatch call{params, shared, tail, deadline, 0};
  if (warp::index() == 0)
    open_dispatch(params, shared, mover);
  else if (params.call.kind == CallKind::dispatch)
    count_tokens(call);
  block::sync();
  call.epoch = shared.epoch;
  if (thread::index() == 0) {
    note(params.call, Moment::counted);
    pass_epoch(params.call, call.epoch);
  }

  const bool routed = find_routes(call);
  if (warp::index() != 0) {
    if (routed) move_metadata(call);
    if (thread::index() == kWarpLanes) note(params.call, Moment::told);
  } else {
    if (routed) mover.move_all(call);
    if (thread::index() == 0) note(params.call, Moment::moved);
    mover.let_go();
    if (!routed && block::index() == 0 && thread::index() == 0 && call.refused())
      report_refusal(call);
  }
  if (block::any(deadline.failed())) return;  // Nobody may believe that this block has finished.
  finish_call(params.call, call.hellos(), tail.waits(), deadline, call.epoch,
              Phase::dispatch_arrivals,
              Watched(params.readiness, deadline, params.call.kind == CallKind::dispatch));
}

DEFINE_KERNEL(dispatch_kernel, dispatch, DispatchParams, DispatchShared, kDispatchThreadsMax)

}  // namespace tokenyard::throughput
