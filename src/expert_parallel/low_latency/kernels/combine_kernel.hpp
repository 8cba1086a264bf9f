/// The combine kernel. See combine.hpp for the protocol.
#pragma once

#include "expert_parallel/low_latency/kernels/add_sums_kernel.hpp"
#include "expert_parallel/low_latency/kernels/send_sums_kernel.hpp"

namespace tokenyard::low_latency {

template <class Codec>
TOKENYARD_DEVICE void combine(const CombineParams& params) {
  auto& shared = block::shared<CombineShared>();
  if (warp::index() == 0) grid::fetch_parameters(params, params.call.workspace);
  const CallParams& common = params.call;
  if (sends(common.part) && block::index() < common.send_blocks)
    send_combine<Codec>(params, shared);
  else
    receive_combine<Codec>(params, shared);
}

TOKENYARD_DEFINE_KERNEL(combine_kernel, combine<Bf16Codec>, CombineParams, CombineShared,
                        kCombineThreadsMax)
TOKENYARD_DEFINE_KERNEL(combine_logfmt_kernel, combine<LogFmtCodec>, CombineParams, CombineShared,
                        kLogFmtThreadsMax)

}  // namespace tokenyard::low_latency
