/// Kernels that wait: for one another, for time, for the previous kernel.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

struct WaitParams {
  WaitContext wait_context;
  uint32_t* flag;    ///< [1] stored by block 0
  uint32_t value;    ///< value that block 0 stores
  uint32_t* waited;  ///< [blocks * threads] 1 if the thread's wait succeeded
  uint32_t refuses;  ///< 1: block 0 fails the call instead of storing
};

/// All threads of all blocks but the first wait until the flag is 7.
TOKENYARD_DEVICE void wait_body(const WaitParams& params) {
  const Deadline deadline = params.wait_context.start();
  const uint32_t me = block::index() * block::threads() + thread::index();
  Awaited what{.phase = 3, .rank = 5, .expected = 7};
  if (block::index() == 0) {
    if (thread::index() != 0) return;
    if (params.refuses) {
      what.seen = 99;
      deadline.fail(Failure::refused, what);
    } else {
      store<Order::release, Scope::gpu>(params.flag, params.value);
    }
    return;
  }
  params.waited[me] = wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::gpu>(params.flag);
    return what.seen == what.expected;
  });
}

struct LeavingParams {
  WaitContext wait_context;
  AbortWord* abort_flag;  ///< of `wait_context`
  uint32_t goodbye;       ///< number of the poll during which the rank leaves
  uint32_t arrives;       ///< number of the poll that finds the awaited value
  uint32_t from_rank;     ///< 1 if only that rank could store it
  uint32_t* waited;       ///< [1] 1 if the wait succeeded
};

/// Waits for rank 5, which leaves between two polls.
TOKENYARD_DEVICE void leaving_body(const LeavingParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  Awaited what{
      .phase = 3, .rank = 5, .expected = params.arrives, .from_rank = params.from_rank != 0};
  *params.waited = wait_until(deadline, what, [&] {
    if (++what.seen == params.goodbye) {
      store<Order::relaxed, Scope::sys>(params.abort_flag + 1 + what.rank, kLeft);
      store<Order::release, Scope::sys>(params.abort_flag, kLeft);
    }
    return what.seen >= what.expected;
  });
}

struct LoopParams {
  WaitContext wait_context;
  uint32_t most;    ///< turns at most
  uint32_t* turns;  ///< [1] turns taken before the abort flag was seen
};

/// Loops without waiting, and polls the abort flag.
TOKENYARD_DEVICE void loop_body(const LoopParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  const Awaited what{.phase = 2, .rank = 4};
  uint32_t turns = 0;
  while (turns < params.most && !deadline.heed_abort(what)) ++turns;
  *params.turns = turns;
}

struct TimeParams {
  uint64_t* ns;      ///< [3] before a nap, after it, and once more
  uint64_t* cycles;  ///< [2]
};

TOKENYARD_DEVICE void time_body(const TimeParams& params) {
  if (thread::index() != 0) return;
  params.cycles[0] = cycles();
  params.ns[0] = now_ns();
  nap(20'000);
  params.ns[1] = now_ns();
  params.ns[2] = now_ns();
  params.cycles[1] = cycles();
}

struct ChainParams {
  uint32_t* value;
};

/// Multiplies by three and adds one, so the value shows the order of the runs.
TOKENYARD_DEVICE void chain_body(const ChainParams& params) {
  grid::let_next_start();
  grid::wait_for_previous();
  if (thread::index() == 0) *params.value = 3 * *params.value + 1;
}

TOKENYARD_DEFINE_KERNEL(wait_kernel, wait_body, WaitParams, NoShared, 64)
TOKENYARD_DEFINE_KERNEL(leaving_kernel, leaving_body, LeavingParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(loop_kernel, loop_body, LoopParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(time_kernel, time_body, TimeParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(chain_kernel, chain_body, ChainParams, NoShared, 32)

}  // namespace tokenyard::testing
