/// The combine kernel; combine.hpp tells how it works.
#pragma once

#include "expert_parallel/throughput/call_kernel.hpp"
#include "expert_parallel/throughput/combine_weights_kernel.hpp"
#include "expert_parallel/throughput/fetch_rows_kernel.hpp"
#include "expert_parallel/throughput/prepare_rows_kernel.hpp"
#include "expert_parallel/throughput/sum_rows_kernel.hpp"

namespace tokenyard::throughput {

/// By the whole block, which then has to meet.
DEVICE void ready_rings(const CombineParams& params, CombineShared& shared) {
  const uint32_t summers = CombineWarp::mine(params).summers;
  for (uint32_t i = thread::index(); i < params.groups * params.stages_most();
       i += block::threads()) {
    shared.full[i].init(1);
    shared.empty[i].init(summers);
  }
  fence_async_shared();
}

DEVICE void combine(const CombineParams& params) {
  grid::wait_for_previous();
  release_hello();
  auto& shared = block::shared<CombineShared>();
  CombineTail tail = CombineTail::of(params);
  tail.base = block::shared_tail<CombineShared>();
  const Deadline deadline = params.call.patience.start();
  ready_rings(params, shared);
  for (uint32_t i = thread::index(); i < kWaitWords * params.call.ranks; i += block::threads())
    tail.waits().words[i] = 0;
  if (block::index() >= pullers_of(params)) ready_preparation(params, shared, tail);
  if (!begin_call(params.call, shared.call, deadline)) return;

  const uint32_t epoch = shared.call.epoch, route_epoch = shared.call.route_epoch;
  const Combine call{params, shared, tail, deadline, epoch, route_epoch};
  if (says_hello()) say_hello(params.call, epoch, route_epoch);
  // The first look at the routes is under way while the others are heard.
  const CombineWarp mine = CombineWarp::mine(params);
  ComingRows coming(call, mine);
  // Not by a thread that others wait for.
  if (thread::index() + 1 == block::threads()) pass_epoch(params.call, epoch);
  if (!await_hellos(params.call, call.hellos(), tail.waits(), deadline, epoch, route_epoch,
                    Phase::combine_hello))
    return;
  if (thread::index() == 0) note(params.call, shared.call, Moment::greeted);
  if (mine.group == params.groups) {
    if (call.prepares()) tell_of_rows(call);
    combine_weights(call);
  } else if (call.prepares()) {
    prepare_rows(call, mine);
  } else if (mine.fetches()) {
    fetch_rows(call, mine.group, coming);
    if (thread::index() == 0) note(params.call, shared.call, Moment::moved);
  } else {
    sum_rows(call, mine);
  }
  if (block::any(deadline.failed())) return;  // Nobody may believe that this block has finished.
  finish_call(params.call, shared.call, call.hellos(), tail.waits(), deadline, Phase::combine_pulls,
              Unwatched{}, [] {});
}

DEFINE_KERNEL(combine_kernel, combine, CombineParams, CombineShared, kCombineThreadsMax)

}  // namespace tokenyard::throughput
