/// A kernel whose first block asks for iterations as a fed run does (host_feed_kernel.hpp), and
/// whose second one feeds and stops it as a host does (Megakernel::feed, stop).
#pragma once

#include "device/device.hpp"
#include "megakernel/kernels/host_feed_kernel.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kFeedsMax = 4, kFedMax = 12;

struct FeedParams {
  RunParams run;
  uint32_t feeds;              ///< calls of feed before the stop
  uint32_t fed[kFeedsMax];     ///< iterations per call
  uint32_t awaits;             ///< bit per call: its iterations are awaited before the next call
  uint64_t *inputs, *outputs;  ///< [kFedMax] per iteration
  uint32_t* ran;               ///< iterations of the run
};
TOKENYARD_DECLARE_KERNEL(feed_kernel, FeedParams);

struct FeedShared {
  WorkerShared worker;
};

TOKENYARD_DEVICE uint64_t fed_input(uint32_t iteration) {
  return 7 * iteration + 3;
}

TOKENYARD_DEVICE void run_as_fed(const FeedParams& params) {
  auto& shared = block::shared<FeedShared>();
  const WaitContext idle = idle_wait_context(params.run);
  const Working working{params.run, shared.worker, idle, now_ns()};
  uint32_t done = 0;
  while (ask_host(working, done).allowed() > done) {
    params.outputs[done] = params.inputs[done] + 1;
    ++done;
  }
  *params.ran = done;
}

TOKENYARD_DEVICE void feed_and_stop(const FeedParams& params) {
  RunRecord& record = *params.run.record;
  uint32_t fed = 0;
  for (uint32_t call = 0; call < params.feeds; ++call) {
    for (uint32_t i = 0; i < params.fed[call]; ++i) params.inputs[fed + i] = fed_input(fed + i);
    fed += params.fed[call];
    store<Order::release, Scope::sys>(&record.fed, fed);
    if ((params.awaits >> call & 1) == 0) continue;
    Awaited what{.expected = fed};
    const bool came = wait_until(params.run.wait_context.start(), what, [&] {
      what.seen = load<Order::acquire, Scope::sys>(&record.done);
      return what.seen >= fed;
    });
    if (!came || params.outputs[fed - 1] != fed_input(fed - 1) + 1) return;
  }
  store<Order::release, Scope::sys>(&record.stop, 1);
}

TOKENYARD_DEVICE void feed(const FeedParams& params) {
  if (thread::index() != 0) return;
  block::index() == 0 ? run_as_fed(params) : feed_and_stop(params);
}

}  // namespace tokenyard::megakernel
