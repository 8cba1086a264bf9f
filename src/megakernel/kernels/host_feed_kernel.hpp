/// How a run hears from its host between iterations: that it shall end, and, if it is fed, whether
/// there shall be another one.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// By one thread of a block, before an iteration: whether the run has failed, or is cancelled.
/// Waits look for themselves, but only when they last, and those of short iterations do not; a
/// worker without tasks may not wait for anything. Rarely, since a look takes a microsecond, and
/// `listens`, one block of the rank, to the host: all others hear of its cancel by the failure.
DEVICE bool cancelled(const Working& working, uint64_t iteration, bool listens) {
  constexpr uint64_t kIterationsBetweenLooks = 32;
  if (iteration % kIterationsBetweenLooks != 0) return false;
  const Deadline deadline(working.deadline());
  const Awaited what{.phase = phase_of(working.params, RunPhase::host),
                     .rank = working.params.rank};
  return listens ? deadline.heed_abort(what) : deadline.failed();
}

/// By one thread of the rank: tells the host that `done` iterations of the run have ended, and
/// waits until it has fed another one or stopped the run. Allows nothing if the run has failed.
DEVICE Turn ask_host(const Working& working, uint32_t done) {
  const RunParams& params = working.params;
  // Release: what the iterations have written, the host may read once it sees this.
  store<Order::release, Scope::sys>(&params.record->done, done);
  Turn turn{};
  Awaited what{.phase = phase_of(params, RunPhase::host), .rank = params.rank};
  // However long the host takes, and with an eye on the alarm: nobody else of the rank has one now.
  WaitContext wait_context = params.wait_context;
  wait_context.timeout_ns = UINT64_MAX;
  const bool answered = wait_until(DeadlineApart(wait_context, working.began_ns), what, [&] {
    // `stop` first: the host writes it after its last `fed`. Acquire: inputs lie before `fed`.
    const bool stop = load<Order::acquire, Scope::sys>(&params.record->stop) != 0;
    const uint32_t fed = load<Order::acquire, Scope::sys>(&params.record->fed);
    // What all others wait for, deaf to the alarm: until it lets them go on, this thread listens.
    turn = Turn::of(params.run, fed, stop);
    return turn.allowed() > done || turn.all();
  });
  return answered ? turn : Turn::of(params.run, 0, false);
}

}  // namespace tokenyard::megakernel
