#pragma once

#include "megakernel/hold_kernel.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEVICE void hold_until_released(const HoldParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  Awaited what{.expected = 1};
  store<Order::release, Scope::sys>(params.holding, 1);
  wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::sys>(params.released);
    return what.seen != 0;
  });
}

TOKENYARD_DEFINE_KERNEL(hold_kernel, hold_until_released, HoldParams, NoShared, 32)

}  // namespace tokenyard::megakernel
