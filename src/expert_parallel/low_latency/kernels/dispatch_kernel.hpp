/// The dispatch kernel. See dispatch.hpp for the protocol.
#pragma once

#include "expert_parallel/low_latency/kernels/receive_rows_kernel.hpp"

namespace tokenyard::low_latency {

/// Senders have the lower block indices and wait for no receiver of their own rank, so the kernel
/// also ends if its grid is not resident as a whole.
TOKENYARD_DEVICE void dispatch(const DispatchParams& params) {
  if (warp::index() == 0) grid::fetch_parameters(params, params.call.workspace);
  const CallParams& common = params.call;
  if (sends(common.part) && block::index() < common.send_blocks)
    send_dispatch(params);
  else
    receive_dispatch(params);
}

TOKENYARD_DEFINE_KERNEL(dispatch_kernel, dispatch, DispatchParams, NoShared, kDispatchThreadsMax)

}  // namespace tokenyard::low_latency
