/// Communication of a run with its host between iterations: cancellation and, in a fed run, the
/// permission for another iteration.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// Returns whether the run has failed or was cancelled. Called by one thread per block before an
/// iteration. Waits check this only when they last, which those of short iterations do not, and a
/// worker without tasks may never wait. The check takes a microsecond, so it is rare; only one
/// block per rank, `listens`, reads the host's flag, and the others learn of a cancel through the
/// failure.
TOKENYARD_DEVICE bool cancelled(const Working& working, uint64_t iteration, bool listens) {
  constexpr uint64_t kIterationsBetweenLooks = 32;
  if (iteration % kIterationsBetweenLooks != 0) return false;
  const Deadline deadline(working.deadline());
  const Awaited what{.phase = phase_of(working.params, RunPhase::host),
                     .rank = working.params.rank};
  return listens ? deadline.heed_abort(what) : deadline.failed();
}

/// Reports to the host that `done` iterations of the run have ended, and waits until it has fed
/// another one or stopped the run. Called by one thread per rank. Allows nothing if the run has
/// failed.
TOKENYARD_DEVICE Turn ask_host(const Working& working, uint32_t done) {
  const RunParams& params = working.params;
  // Release: once the host sees this, it may read what the iterations have written.
  store<Order::release, Scope::sys>(&params.record->done, done);
  Turn turn{};
  Awaited what{.phase = phase_of(params, RunPhase::host), .rank = params.rank};
  // No deadline: the host may take any time. This is the rank's only thread that now watches the
  // abort flag.
  WaitContext wait_context = params.wait_context;
  wait_context.timeout_ns = UINT64_MAX;
  const bool answered = wait_until(DeadlineApart(wait_context, working.began_ns), what, [&] {
    // `stop` first: the host writes it after its last `fed`. Acquire: inputs were written before
    // `fed`.
    const bool stop = load<Order::acquire, Scope::sys>(&params.record->stop) != 0;
    const uint32_t fed = load<Order::acquire, Scope::sys>(&params.record->fed);
    // All other threads wait for this answer and ignore the abort flag; until then, this thread
    // watches it.
    turn = Turn::of(params.run, fed, stop);
    return turn.allowed() > done || turn.all();
  });
  return answered ? turn : Turn::of(params.run, 0, false);
}

}  // namespace tokenyard::megakernel
