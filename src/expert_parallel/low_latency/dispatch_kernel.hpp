/// The dispatch kernel; dispatch.hpp tells how it works.
#pragma once

#include "expert_parallel/low_latency/spread_rows_kernel.hpp"

namespace tokenyard::low_latency {

DEVICE void dispatch(const DispatchParams& params) {
  auto& shared = block::shared<DispatchShared>();
  const CallParams& common = params.call;
  const Call call{common, shared.call, Kind::dispatch, read_epoch(common, Kind::dispatch),
                  now_ns()};
  // Senders have the lower indices and wait for no receiver: a grid that is not resident as a
  // whole ends too.
  const bool sending = sends(common.part) && block::index() < common.send_blocks;
  open_call(call, sending);
  const uint32_t receivers = grid::blocks() - (sends(common.part) ? common.send_blocks : 0);
  DispatchTail tail = DispatchTail::of(params, std::max(receivers, 1u));
  tail.base = block::shared_tail<DispatchShared>();
  const Dispatch dispatch{params, shared, tail, call};
  if (sending)
    send_dispatch(dispatch);
  else
    receive_dispatch(dispatch);
  close_call(call);
}

DEFINE_KERNEL(dispatch_kernel, dispatch, DispatchParams, DispatchShared, kDispatchThreadsMax)

}  // namespace tokenyard::low_latency
