/// The waits of a worker in a dynamic run: for a task in its ticket's slot, and for the events of
/// the expected task. It polls both together, so that nothing separates the slot from the task: the
/// slot only assigns the task, whose predecessors become visible through the counters that its own
/// block acquires. If a different task arrives, or one pinned to this worker, its packet is ordered
/// and its events are checked then; they are complete.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// Orders a packet, by the thread that watches the slot. There is no other order at that time,
/// since the previous one brought the packet that this thread has read.
TOKENYARD_DEVICE void order_packet(const Working& working, PacketOrder order) {
  // Relaxed: see Feeder::take_order.
  store<Order::relaxed, Scope::block>(&working.shared.order, order.bits);
}

/// Decides, by the same thread, that the expected task does not run; all learn it at the next
/// meeting.
TOKENYARD_DEVICE void decide(const Working& working, Verdict::Kind kind) {
  // Relaxed: read after the meeting, or by threads whose wait has become pointless.
  store<Order::relaxed, Scope::block>(&working.shared.verdict,
                                      Verdict::of(kind, working.meetings + 1).bits);
}
TOKENYARD_DEVICE bool is_decided(const Working& working) {
  const Verdict verdict{load<Order::relaxed, Scope::block>(&working.shared.verdict)};
  return verdict.at(working.meetings + 1) != Verdict::Kind::run;
}

/// Orders a task other than the expected one.
TOKENYARD_DEVICE void order_other(const Working& working, uint32_t place, uint64_t iteration,
                                  bool ticket_used) {
  working.shared.ordered_iteration = iteration;
  // Release: the iteration was written before.
  store<Order::release, Scope::block>(&working.shared.order,
                                      PacketOrder::other(place, ticket_used).bits);
  decide(working, Verdict::Kind::drop);
}

TOKENYARD_DEVICE void fail_awaiting_task(const Working& working) {
  stall(working, {.what = Stalled::packet});
}

/// The queues of tasks pinned to this worker, one per scheduler.
class OwnQueues {
 public:
  TOKENYARD_DEVICE explicit OwnQueues(const Working& working)
      : working_(working), dynamic_(working.params.dynamic) {}

  /// Looks into the next queue in turn. Returns whether it holds a task.
  TOKENYARD_DEVICE bool look(uint32_t& place) {
    from_ = from_ + 1 < dynamic_.schedulers ? from_ + 1 : 0;
    return queue().template peek<Scope::gpu>(head(), place);
  }
  /// Takes the task that look() found; it belongs to the running iteration.
  TOKENYARD_DEVICE void take(uint32_t place) {
    // Relaxed: it was written before the queue's value, which is acquired.
    const uint64_t begun = load<Order::relaxed, Scope::gpu>(&working_.params.workspace->begun);
    order_other(working_, place, begun - 1, false);
    queue().template free<Scope::gpu>(head());
    dynamic_.heads[block::index() * dynamic_.schedulers + from_] = ++head();
  }

 private:
  TOKENYARD_DEVICE Queue queue() const { return dynamic_.task_queue(block::index(), from_); }
  TOKENYARD_DEVICE uint64_t& head() const { return working_.shared.heads[from_]; }

  const Working& working_;
  const DynamicParams& dynamic_;
  uint32_t from_ = 0;
};

/// Rebuilds a Working in a function that is not inlined: if the caller passed its own by reference,
/// it would have to keep all of it in memory.
TOKENYARD_DEVICE Working working_apart(const RunParams* run, WorkerShared* shared,
                                       const WaitContext* idle, uint32_t meetings,
                                       uint64_t began_ns = 0) {
  return {.params = *run,
          .shared = *shared,
          .idle = *idle,
          .began_ns = began_ns,
          .settles = false,
          .meetings = meetings};
}

/// Implements look_out out of line, so that the path of a static run has none of its code.
TOKENYARD_DEVICE_APART void look_out_apart(const RunParams* run, WorkerShared* shared,
                                           const WaitContext* idle, uint64_t began_ns,
                                           uint32_t meetings, uint32_t slot_of_packet,
                                           uint64_t iteration) {
  const RunParams& params = *run;
  const Working working = working_apart(run, shared, idle, meetings, began_ns);
  const Packet& head = shared->packet(slot_of_packet);
  const WaitRecord* const waits = head.wait_records();
  const Ticket ticket = shared->tickets[slot_of_packet];
  const DynamicParams& dynamic = params.dynamic;
  Stamped* const slot = dynamic.slot_of(ticket.number);
  const uint32_t stamp = stamp_of(ticket.number);
  // A task without events polls a word that is always complete.
  const WaitRecord none{.event = 0, .triggers = 0, .lag = 0, .remote = 0, .rank = 0};
  const WaitRecord wait = head.waits > 0 ? waits[0] : none;
  const uint64_t need = uint64_t{wait.triggers} * (iteration + 1 - wait.lag);
  const Peer<uint64_t> counter = head.waits > 0 ? params.windows.own_counter(wait.event)
                                                : Peer<uint64_t>(&params.workspace->begun);
  Awaited what{.phase = phase_of(params, RunPhase::packet), .rank = params.rank};
  OwnQueues own(working);
  // Read before the wait, to keep the path from the slot to the task short.
  const bool slots_wait = dynamic.waits(), owns = dynamic.pinned != 0;
  Stamped found{};
  uint32_t place = 0;
  const bool came = wait_until(working.idle_deadline(), what, [&] {
    constexpr uint32_t kPolls = 8;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t poll = 0; poll < kPolls; ++poll) {
      // Relaxed, and in flight together: a slot only assigns the task, and the event is acquired
      // once it is complete.
      found = load<Order::relaxed, Scope::gpu>(slot);
      const uint64_t have = load<Order::relaxed, Scope::sys>(counter);
      // A filled slot has priority: otherwise a worker whose own queue has a task as well would
      // leave before it sees the expected task's event complete.
      if (found.epoch == stamp) {
        if (found.value != ticket.place.bits || have >= need) return true;
      } else if (owns && own.look(place)) {
        return true;
      }
    }
    return false;
  });
  if (!came) return fail_awaiting_task(working);
  if (found.epoch != stamp) return own.take(place);
  if (slots_wait)
    // Relaxed: this thread has read the value to be overwritten, and the scheduler reads this word
    // before it overwrites it; all accesses are to one word.
    store<Order::relaxed, Scope::gpu>(slot, Stamped{stamp, kTaken});
  if (found.value == kStop) return decide(working, Verdict::Kind::stop);
  if (found.value != ticket.place.bits) return order_other(working, found.value, iteration, true);
  if (wait.remote != 0)
    fence_acquire<Scope::sys>();
  else
    fence_acquire<Scope::gpu>();
  order_packet(working, PacketOrder::next(head.follower, true));
}

/// Waits, by one thread, until the ticket's slot is filled and, if it holds the expected task, the
/// task's first event is complete, or until there is something else to do.
TOKENYARD_DEVICE void look_out(const Working& working, uint32_t slot, uint64_t iteration) {
  look_out_apart(&working.params, &working.shared, &working.idle, working.began_ns,
                 working.meetings, slot, iteration);
}

/// Waits, by one thread, until another event of the expected task is complete, or the task is not
/// to run.
TOKENYARD_DEVICE_APART void await_expected_apart(const RunParams* run, WorkerShared* shared,
                                                 const WaitContext* idle, uint32_t meetings,
                                                 const WaitRecord* record, uint64_t iteration) {
  const RunParams& params = *run;
  const Working working = working_apart(run, shared, idle, meetings);
  const WaitRecord& wait = *record;
  const uint64_t need = uint64_t{wait.triggers} * (iteration + 1 - wait.lag);
  const Peer<uint64_t> counter = params.windows.own_counter(wait.event);
  Awaited what{.phase = phase_of(params, RunPhase::packet), .rank = params.rank};
  if (!wait_until(working.idle_deadline(), what, [&] {
        const uint64_t have = wait.remote != 0 ? load<Order::acquire, Scope::sys>(counter)
                                               : load<Order::acquire, Scope::gpu>(counter);
        return have >= need || is_decided(working);
      }))
    fail_awaiting_task(working);
}

/// Waits, by one thread, until the iteration of the expected or arrived task has begun. Returns
/// false if the task is not to run. Acquire: everything before the iteration.
TOKENYARD_DEVICE_APART bool await_iteration_apart(const RunParams* run, WorkerShared* shared,
                                                  const WaitContext* idle, uint32_t meetings,
                                                  uint64_t iteration) {
  const RunParams& params = *run;
  const Working working = working_apart(run, shared, idle, meetings);
  Awaited what{.phase = phase_of(params, RunPhase::packet), .rank = params.rank};
  bool begun = false;
  if (!wait_until(working.idle_deadline(), what, [&] {
        const uint64_t seen = load<Order::acquire, Scope::gpu>(&params.workspace->begun);
        // (A value left by the previous run is no iteration.)
        begun = seen > iteration && seen < kRunStopped;
        return begun || is_decided(working);
      }))
    fail_awaiting_task(working);
  return begun;
}

TOKENYARD_DEVICE void await_expected_event(const Working& working, const WaitRecord& wait,
                                           uint64_t iteration) {
  await_expected_apart(&working.params, &working.shared, &working.idle, working.meetings, &wait,
                       iteration);
}
TOKENYARD_DEVICE bool await_iteration(const Working& working, uint64_t iteration) {
  return await_iteration_apart(&working.params, &working.shared, &working.idle, working.meetings,
                               iteration);
}

}  // namespace tokenyard::megakernel
