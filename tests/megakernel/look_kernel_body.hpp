#pragma once

#include "megakernel/kernels/host_feed_kernel.hpp"
#include "megakernel/look_kernel.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEVICE void look_before_iteration(const LookParams& params) {
  if (thread::index() != 0) return;
  auto& shared = block::shared<WorkerShared>();
  const WaitContext idle = idle_wait_context(params.run);
  const Working working{.params = params.run, .shared = shared, .idle = idle, .began_ns = now_ns()};
  params.cancelled[block::index()] = cancelled(working, params.iteration, block::index() == 0);
}

TOKENYARD_DEFINE_KERNEL(look_kernel, look_before_iteration, LookParams, WorkerShared, 32)

}  // namespace tokenyard::megakernel
