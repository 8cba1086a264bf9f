/// The begin of a run: every rank writes its ready word to all ranks.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// Returns the value on which ranks must agree: the number of iterations, or that hosts feed the
/// run.
TOKENYARD_DEVICE uint32_t run_length(const RunParams& params) {
  return params.fed ? UINT32_MAX : params.iterations;
}

/// Waits, by one thread, until a rank has begun this run. Returns false if it does not, or begins a
/// different one.
TOKENYARD_DEVICE bool await_ready(const Working& working, uint32_t rank) {
  const RunParams& params = working.params;
  const uint32_t length = run_length(params);
  Awaited what{
      .phase = phase_of(params, RunPhase::ready_word), .rank = rank, .expected = params.run};
  Stamped ready_word{};
  const bool came = wait_until(working.deadline(), what, [&] {
    // Acquire: all that rank's accesses to our memory in the previous run are over.
    ready_word = load<Order::acquire, Scope::sys>(params.windows.ready_word(params.rank, rank));
    what.seen = ready_word.epoch;
    // A rank that waits for no other rank may already have begun its next run.
    return static_cast<int32_t>(ready_word.epoch - params.run) >= 0;
  });
  const bool another_run = came && ready_word.epoch == params.run && ready_word.value != length;
  if (another_run) {
    what.expected = length;
    what.seen = ready_word.value;
    working.deadline().fail(Failure::refused, what);
  }
  if (came && !another_run) return true;
  stall(working,
        {.what = Stalled::ready_word, .rank = rank, .need = what.expected, .have = what.seen});
  return false;
}

TOKENYARD_DEVICE bool await_all_ready(const Working& working) {
  for (uint32_t rank = 0; rank < working.params.ranks; ++rank)
    if (!await_ready(working, rank)) return false;
  return true;
}

}  // namespace tokenyard::megakernel
