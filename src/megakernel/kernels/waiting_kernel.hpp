/// How a worker's threads wait, and how they come to agree that the run has failed.
#pragma once

#include "device/unroll.hpp"
#include "megakernel/kernels/worker_shared.hpp"

namespace tokenyard::megakernel {

/// What every thread of a worker carries along.
struct Working {
  const RunParams& params;
  WorkerShared& shared;
  /// For those who wait until others have work for them: others' deadlines, and others' eyes on the
  /// host's alarm, end it. They poll without a pause, and the alarm lies across PCIe: were all
  /// blocks to read it that often, each read would take a hundred times as long.
  const WaitContext& idle;
  uint64_t began_ns;    ///< the iteration, or the run
  bool settles = true;  ///< TaskList::kSettles
  const SettledWord failed = SettledWord(shared.failed);
  const uint32_t compute_threads = keep(params.compute_warps * kWarpLanes);
  uint32_t meetings = 0;  ///< that this thread has come to

  /// `number` in a register, or worked out again where it is asked for.
  DEVICE uint32_t keep(uint32_t number) const { return settles ? settled(number) : number; }
  DEVICE DeadlineApart deadline() const { return DeadlineApart(params.wait_context, began_ns); }
  DEVICE DeadlineApart idle_deadline() const { return DeadlineApart(idle, began_ns); }
};

/// Patience for Working::idle.
DEVICE WaitContext idle_wait_context(const RunParams& params) {
  WaitContext idle = params.wait_context;
  idle.timeout_ns = UINT64_MAX;
  idle.abort_flag = &params.workspace->never;
  return idle;
}

enum class WorkerBarrier : uint8_t { compute = 1 };

/// By one thread whose wait has failed. The block finds out when it next meets: the flag is the
/// number of that meeting, so that a thread which is late to look at the flag after the one before
/// does not leave alone.
DEVICE void fail_worker(const Working& working) {
  // Relaxed: read after a barrier that this thread comes to as well.
  store<Order::relaxed, Scope::block>(&working.shared.failed, working.meetings + 1);
}

/// For `stall`.
DEVICE_APART void leave_record(uint32_t* stalled, StallRecord* to, Stalled what, uint32_t task,
                               uint32_t event, uint32_t rank, uint64_t iteration, uint64_t need,
                               uint64_t have) {
  // Relaxed: it only picks one of the threads that wait at the same time.
  if (exchange<Order::relaxed, Scope::block>(stalled, 1) == 0)
    *to = {what, task, event, rank, iteration, need, have};
}

/// As fail_worker, and leaves the worker's record of what was missing, unless another thread has.
DEVICE void stall(const Working& working, const StallRecord& record) {
  leave_record(&working.shared.stalled, working.params.stalls + block::index(), record.what,
               record.task, record.event, record.rank, record.iteration, record.need, record.have);
  fail_worker(working);
}

DEVICE void come_together(Working& working) {
  NamedBarrier(WorkerBarrier::compute).sync(working.compute_threads);
  ++working.meetings;
}
/// The meeting that finds a wait failed, or kNeverFailed: by a thread that has just come to one. If
/// it is that one or an earlier one, all who have met there find the same.
DEVICE uint32_t failed_meeting(const Working& working) {
  return working.settles ? working.failed.load()
                         : load<Order::relaxed, Scope::block>(&working.shared.failed);
}
/// The compute warps meet; false once a wait of any of their threads has failed. All of them get
/// the same answer.
DEVICE bool meet(Working& working) {
  come_together(working);
  return failed_meeting(working) > working.meetings;
}

/// Whether a loader should stop because nobody needs what it loads.
DEVICE bool ended(const Working& working) {
  // Relaxed first: an acquire has a fence, which would slow whoever asks all the time.
  if (load<Order::relaxed, Scope::block>(&working.shared.ended) == 0) return false;
  // Acquire: what the compute warps did last comes before what this lane does next.
  return load<Order::acquire, Scope::block>(&working.shared.ended) != 0;
}

/// For await_counter.
///
/// Polls come in a row: whoever waits here is alone of its block, and a loop's own instructions
/// would stand between one and the next (a hop within an H200: 0.87 us, with four in a row 0.80).
/// They are relaxed, and acquired once, when the counter has come. More than one under way at a
/// time would be slower: who has seen it come must still wait for those that follow.
template <Scope scope>
DEVICE bool await_counter_of(const DeadlineApart& deadline, Awaited& what, Peer<uint64_t> counter) {
  constexpr uint32_t kPolls = 8, kInARow = scope == Scope::gpu ? kPolls : 1;
  const bool came = wait_until(deadline, what, [&] {
    KEEP_ROLLED
    for (uint32_t poll = 0; poll < kPolls; poll += kInARow) {
      UNROLL
      for (uint32_t i = 0; i < kInARow; ++i) {
        what.seen = load<Order::relaxed, scope>(counter);
        if (what.seen >= what.expected) return true;
      }
    }
    return false;
  });
  if (!came) [[unlikely]]
    return false;
  fence_acquire<scope>();
  return true;
}

/// By one thread, until `counter` of this rank has got to `need`. Acquire: what was done before
/// the signals is visible from here on, to the whole block once it has met.
DEVICE bool await_counter(const DeadlineApart& deadline, Awaited& what, Peer<uint64_t> counter,
                          bool remote) {
  return remote ? await_counter_of<Scope::sys>(deadline, what, counter)
                : await_counter_of<Scope::gpu>(deadline, what, counter);
}

DEVICE void await_event(const Working& working, uint32_t task, const WaitRecord& wait,
                        uint64_t iteration) {
  const RunParams& params = working.params;
  // An event of the iteration before the first is complete by definition: its need is 0.
  Awaited what{.phase = task,
               .rank = wait.rank,
               .expected = uint64_t{wait.triggers} * (iteration + 1 - wait.lag),
               .from_rank = wait.remote == WaitRecord::kOneRank};
  if (await_counter(working.deadline(), what, params.windows.own_counter(wait.event),
                    wait.remote != 0))
    return;
  stall(working, {.what = Stalled::event,
                  .task = task,
                  .event = wait.event,
                  .rank = wait.rank,
                  .iteration = iteration,
                  .need = what.expected,
                  .have = what.seen});
}

}  // namespace tokenyard::megakernel
