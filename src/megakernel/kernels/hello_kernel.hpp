/// How a run begins: every rank says hello to all others.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// What ranks must agree on: iterations, or that their hosts feed them.
DEVICE uint32_t run_length(const RunParams& params) {
  return params.fed ? UINT32_MAX : params.iterations;
}

/// By one thread: until a rank has begun this run. False if it does not, or begins another one.
DEVICE bool hear(const Working& working, uint32_t rank) {
  const RunParams& params = working.params;
  const uint32_t length = run_length(params);
  Awaited what{.phase = phase_of(params, RunPhase::hello), .rank = rank, .expected = params.run};
  Stamped hello{};
  const bool came = wait_until(working.deadline(), what, [&] {
    // Acquire: whatever that rank did with our memory in the run before is over.
    hello = load<Order::acquire, Scope::sys>(params.windows.hello(params.rank, rank));
    what.seen = hello.epoch;
    // A rank that nobody keeps waiting may have begun its next run already.
    return static_cast<int32_t>(hello.epoch - params.run) >= 0;
  });
  const bool another_run = came && hello.epoch == params.run && hello.value != length;
  if (another_run) {
    what.expected = length;
    what.seen = hello.value;
    working.deadline().fail(Failure::refused, what);
  }
  if (came && !another_run) return true;
  stall(working, {.what = Stalled::hello, .rank = rank, .need = what.expected, .have = what.seen});
  return false;
}

DEVICE bool hear_all(const Working& working) {
  for (uint32_t rank = 0; rank < working.params.ranks; ++rank)
    if (!hear(working, rank)) return false;
  return true;
}

}  // namespace tokenyard::megakernel
