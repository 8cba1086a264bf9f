/// The dispatch kernel; dispatch.hpp tells how it works.
#pragma once

#include "expert_parallel/low_latency/spread_rows_kernel.hpp"

namespace tokenyard::low_latency {

DEVICE void dispatch(const DispatchParams& params) {
  auto& shared = block::shared<DispatchShared>();
  const CallParams& common = params.call;
  const Call call = begin_call(common, shared.call, Kind::dispatch);
  const uint32_t senders = sends(common.part) ? common.send_blocks : 0;
  DispatchTail tail = params.tail;
  tail.base = block::shared_tail<DispatchShared>();
  const Dispatch dispatch{params, shared, tail, call};
  // Senders have the lower indices and wait for no receiver: a grid that is not resident as a
  // whole ends too.
  if (block::index() < senders)
    send_dispatch(dispatch);
  else
    receive_dispatch(dispatch);
  close_call(call);
}

DEFINE_KERNEL(dispatch_kernel, dispatch, DispatchParams, DispatchShared, kDispatchThreadsMax)

}  // namespace tokenyard::low_latency
