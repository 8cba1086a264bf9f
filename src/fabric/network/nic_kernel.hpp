#pragma once

#include "fabric/network/mlx5_front.hpp"
#include "fabric/network/nic_queue.hpp"
#include "fabric/network/request_front.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void nic_body(const NicParams& params) {
  const uint32_t queue = block::index() * NicParams::kWarps + warp::index();
  if (warp::lane() != 0 || queue >= params.queues) return;
  if (params.mlx5_pairs != nullptr) {
    NicQueue<Mlx5Front>(params, queue).work();
  } else {
    NicQueue<RequestFront>(params, queue).work();
  }
}

TOKENYARD_DEFINE_KERNEL(nic_kernel, nic_body, NicParams, NoShared, NicParams::kWarps * 32)

}  // namespace tokenyard
