/// The combine kernel; combine.hpp tells how it works.
#pragma once

#include "expert_parallel/throughput/call_kernel.hpp"
#include "expert_parallel/throughput/combine_weights_kernel.hpp"
#include "expert_parallel/throughput/fetch_rows_kernel.hpp"
#include "expert_parallel/throughput/sum_rows_kernel.hpp"

namespace tokenyard::throughput {

/// By the whole block, which then has to meet.
DEVICE void ready_ring(CombineShared& shared, const StagePlan& plan) {
  if (thread::index() != 0) return;
  const uint32_t summers =
      block::threads() / kWarpLanes - static_cast<uint32_t>(CombineRole::first_summer);
  for (uint32_t stage = 0; stage < plan.stages; ++stage) {
    shared.full[stage].init(1);
    shared.empty[stage].init(summers);
  }
  fence_async();
}

/// By the whole block, which then meets: takes the epoch, greets the peers. The call's epoch.
DEVICE uint32_t open_combine(const CombineParams& params, CombineShared& shared) {
  if (warp::index() == 0) {
    const uint32_t epoch = warp::once([&] { return shared.epoch = read_epoch(params.call); });
    if (block::index() == 0) say_hello(params.call, epoch);
  }
  block::sync();
  if (thread::index() == 0) pass_epoch(params.call, shared.epoch);
  return shared.epoch;
}

DEVICE void combine(const CombineParams& params) {
  auto& shared = block::shared<CombineShared>();
  CombineTail tail = CombineTail::of(params);
  tail.base = block::shared_tail<CombineShared>();
  const Deadline deadline = params.call.patience.start();
  if (thread::index() == 0) note(params.call, Moment::begun);
  ready_ring(shared, params.plan);
  for (uint32_t i = thread::index(); i < kWaitWords * params.call.ranks; i += block::threads())
    tail.waits().words[i] = 0;
  if (block::any(deadline.failed())) return;  // A call before this one has.

  const Combine call{params, shared, tail, deadline};
  const uint32_t epoch = open_combine(params, shared);
  if (!await_hellos(params.call, call.hellos(), tail.waits(), deadline, epoch,
                    Phase::combine_hello))
    return;
  if (thread::index() == 0) note(params.call, Moment::greeted);
  switch (static_cast<CombineRole>(warp::index())) {
    case CombineRole::fetcher:
      fetch_rows(call);
      if (thread::index() == 0) note(params.call, Moment::moved);
      break;
    case CombineRole::weigher:
      combine_weights(call);
      break;
    default:
      sum_rows(call);
  }
  if (block::any(deadline.failed())) return;  // Nobody may believe that this block has finished.
  finish_call(params.call, call.hellos(), tail.waits(), deadline, epoch, Phase::combine_pulls,
              Unwatched{});
}

DEFINE_KERNEL(combine_kernel, combine, CombineParams, CombineShared, kCombineThreadsMax)

}  // namespace tokenyard::throughput
