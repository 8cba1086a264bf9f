/// Waits of a worker's threads, and how these agree that the run has failed.
#pragma once

#include "device/unroll.hpp"
#include "megakernel/kernels/worker_shared.hpp"

namespace tokenyard::megakernel {

/// State that every thread of a worker carries along.
struct Working {
  const RunParams& params;
  WorkerShared& shared;
  /// For waits for work from other threads: deadlines and abort checks of those threads end them.
  /// They poll without a pause, and the abort flag is across PCIe: if all blocks read it that
  /// often, each read would take a hundred times as long.
  const WaitContext& idle;
  uint64_t began_ns;    ///< begin of the iteration, or of the run
  bool settles = true;  ///< TaskList::kSettles
  const SettledWord failed = SettledWord(shared.failed);
  const uint32_t compute_threads = keep(params.compute_warps * kWarpLanes);
  uint32_t meetings = 0;  ///< that this thread has attended

  /// Returns `number`, kept in a register, or computed anew at each use.
  TOKENYARD_DEVICE uint32_t keep(uint32_t number) const {
    return settles ? settled(number) : number;
  }
  TOKENYARD_DEVICE DeadlineApart deadline() const {
    return DeadlineApart(params.wait_context, began_ns);
  }
  TOKENYARD_DEVICE DeadlineApart idle_deadline() const { return DeadlineApart(idle, began_ns); }
};

/// Returns the context for Working::idle.
TOKENYARD_DEVICE WaitContext idle_wait_context(const RunParams& params) {
  WaitContext idle = params.wait_context;
  idle.timeout_ns = UINT64_MAX;
  idle.abort_flag = &params.workspace->never;
  return idle;
}

enum class WorkerBarrier : uint8_t { compute = 1 };

/// Fails the worker, by a thread whose wait has failed. The block learns of it at its next meeting:
/// the flag is the number of that meeting, so a thread that reads the flag late, after the previous
/// meeting, does not leave alone.
TOKENYARD_DEVICE void fail_worker(const Working& working) {
  // Relaxed: read after a barrier at which this thread arrives as well.
  store<Order::relaxed, Scope::block>(&working.shared.failed, working.meetings + 1);
}

/// Writes the record for `stall`.
TOKENYARD_DEVICE_APART void leave_record(uint32_t* stalled, StallRecord* to, Stalled what,
                                         uint32_t task, uint32_t event, uint32_t rank,
                                         uint64_t iteration, uint64_t need, uint64_t have) {
  // Relaxed: it only selects one of the threads whose waits fail at the same time.
  if (exchange<Order::relaxed, Scope::block>(stalled, 1) == 0)
    *to = {what, task, event, rank, iteration, need, have};
}

/// Does as fail_worker, and writes the worker's record of what was missing, unless another thread
/// has.
TOKENYARD_DEVICE void stall(const Working& working, const StallRecord& record) {
  leave_record(&working.shared.stalled, working.params.stalls + block::index(), record.what,
               record.task, record.event, record.rank, record.iteration, record.need, record.have);
  fail_worker(working);
}

TOKENYARD_DEVICE void come_together(Working& working) {
  NamedBarrier(WorkerBarrier::compute).sync(working.compute_threads);
  ++working.meetings;
}
/// Returns the meeting that ends the run, or kNeverFailed; called by a thread right after a
/// meeting. If the result is that meeting or an earlier one, all threads that met there get the
/// same result.
TOKENYARD_DEVICE uint32_t failed_meeting(const Working& working) {
  return working.settles ? working.failed.load()
                         : load<Order::relaxed, Scope::block>(&working.shared.failed);
}
/// Lets the compute warps meet. Returns false once a wait of any of their threads has failed; all
/// threads get the same result.
TOKENYARD_DEVICE bool meet(Working& working) {
  come_together(working);
  return failed_meeting(working) > working.meetings;
}

/// Returns whether a loader should stop because its data is no longer needed.
TOKENYARD_DEVICE bool ended(const Working& working) {
  // Relaxed first: an acquire has a fence, which would slow down frequent polls.
  if (load<Order::relaxed, Scope::block>(&working.shared.ended) == 0) return false;
  // Acquire: all work of the compute warps precedes the next step of this lane.
  return load<Order::acquire, Scope::block>(&working.shared.ended) != 0;
}

/// Polls for await_counter.
///
/// Several polls are unrolled: the waiting thread is the only one of its block here, and a loop's
/// own instructions would separate one poll from the next (a hop within an H200: 0.87 us, with four
/// in a row 0.80). Polls are relaxed, with one acquire fence once the counter is complete. More
/// than one poll in flight at a time would be slower: the thread that has seen completion would
/// still have to wait for the polls that follow.
template <Scope scope>
TOKENYARD_DEVICE bool await_counter_of(const DeadlineApart& deadline, Awaited& what,
                                       Peer<uint64_t> counter) {
  constexpr uint32_t kPolls = 8, kInARow = scope == Scope::gpu ? kPolls : 1;
  const bool came = wait_until(deadline, what, [&] {
    TOKENYARD_KEEP_ROLLED
    for (uint32_t poll = 0; poll < kPolls; poll += kInARow) {
      TOKENYARD_UNROLL
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

/// Waits, by one thread, until `counter` of this rank has reached `what.expected`. Acquire:
/// everything before the signals is visible from here on, to the whole block after its next
/// meeting.
TOKENYARD_DEVICE bool await_counter(const DeadlineApart& deadline, Awaited& what,
                                    Peer<uint64_t> counter, bool remote) {
  return remote ? await_counter_of<Scope::sys>(deadline, what, counter)
                : await_counter_of<Scope::gpu>(deadline, what, counter);
}

TOKENYARD_DEVICE void await_event(const Working& working, uint32_t task, const WaitRecord& wait,
                                  uint64_t iteration) {
  const RunParams& params = working.params;
  // Events of the iteration before the first are complete by definition: `expected` is 0.
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
