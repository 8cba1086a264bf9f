/// What a worker of a dynamic run awaits: that the scheduler publishes a task for its ticket, and
/// the events of the task that this should be. It looks at both at a time, so that nothing lies
/// between the slot and the task: the slot only assigns the task, and what comes before the task
/// comes to it by the counters that its own block has acquired. Where another task comes, or one
/// that only this worker may run, its packet is ordered, and its events are looked at then; they
/// have come.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// By the thread that looks out: there is no other order, since the one before brought the packet
/// that this thread has read.
DEVICE void order_packet(const Working& working, PacketOrder order) {
  // Relaxed: see Feeder::take_order.
  store<Order::relaxed, Scope::block>(&working.shared.order, order.bits);
}

/// By the same: all learn at the next meeting that the expected task does not run.
DEVICE void decide(const Working& working, Verdict::Kind kind) {
  // Relaxed: read after the meeting, or by those who wait for what nobody needs any more.
  store<Order::relaxed, Scope::block>(&working.shared.verdict,
                                      Verdict::of(kind, working.meetings + 1).bits);
}
DEVICE bool is_decided(const Working& working) {
  const Verdict verdict{load<Order::relaxed, Scope::block>(&working.shared.verdict)};
  return verdict.at(working.meetings + 1) != Verdict::Kind::run;
}

/// A task that does not come as it was expected.
DEVICE void order_other(const Working& working, uint32_t place, uint64_t iteration,
                        bool ticket_used) {
  working.shared.ordered_iteration = iteration;
  // Release: the iteration lies before it.
  store<Order::release, Scope::block>(&working.shared.order,
                                      PacketOrder::other(place, ticket_used).bits);
  decide(working, Verdict::Kind::drop);
}

DEVICE void fail_awaiting_task(const Working& working) {
  stall(working, {.what = Stalled::packet});
}

/// The queues of tasks that only this worker runs, one a scheduler.
class OwnQueues {
 public:
  DEVICE explicit OwnQueues(const Working& working)
      : working_(working), dynamic_(working.params.dynamic) {}

  /// Looks into one, and another one each time.
  DEVICE bool look(uint32_t& place) {
    from_ = from_ + 1 < dynamic_.schedulers ? from_ + 1 : 0;
    return queue().template peek<Scope::gpu>(head(), place);
  }
  /// What was seen is this worker's, in the iteration that runs.
  DEVICE void take(uint32_t place) {
    // Relaxed: it lies before what the queue brought.
    const uint64_t begun = load<Order::relaxed, Scope::gpu>(&working_.params.workspace->begun);
    order_other(working_, place, begun - 1, false);
    queue().template free<Scope::gpu>(head());
    dynamic_.heads[block::index() * dynamic_.schedulers + from_] = ++head();
  }

 private:
  DEVICE Queue queue() const { return dynamic_.task_queue(block::index(), from_); }
  DEVICE uint64_t& head() const { return working_.shared.heads[from_]; }

  const Working& working_;
  const DynamicParams& dynamic_;
  uint32_t from_ = 0;
};

/// What functions that lie apart make of what they are called with: of a Working passed to them the
/// caller would keep all in memory.
DEVICE Working working_apart(const RunParams* run, WorkerShared* shared, const WaitContext* idle,
                             uint32_t meetings, uint64_t began_ns = 0) {
  return {.params = *run,
          .shared = *shared,
          .idle = *idle,
          .began_ns = began_ns,
          .settles = false,
          .meetings = meetings};
}

/// For look_out: apart, so that the way of a static run has none of it.
DEVICE_APART void look_out_apart(const RunParams* run, WorkerShared* shared,
                                 const WaitContext* idle, uint64_t began_ns, uint32_t meetings,
                                 uint32_t slot_of_packet, uint64_t iteration) {
  const RunParams& params = *run;
  const Working working = working_apart(run, shared, idle, meetings, began_ns);
  const Packet& head = shared->packet(slot_of_packet);
  const WaitRecord* const waits = head.wait_records();
  const Ticket ticket = shared->tickets[slot_of_packet];
  const DynamicParams& dynamic = params.dynamic;
  Stamped* const slot = dynamic.slot_of(ticket.number);
  const uint32_t stamp = stamp_of(ticket.number);
  // A task without events looks at something that has always come.
  const WaitRecord none{.event = 0, .triggers = 0, .lag = 0, .remote = 0, .rank = 0};
  const WaitRecord wait = head.waits > 0 ? waits[0] : none;
  const uint64_t need = uint64_t{wait.triggers} * (iteration + 1 - wait.lag);
  const Peer<uint64_t> counter = head.waits > 0 ? params.windows.own_counter(wait.event)
                                                : Peer<uint64_t>(&params.workspace->begun);
  Awaited what{.phase = phase_of(params, RunPhase::packet), .rank = params.rank};
  OwnQueues own(working);
  // Read before, since the way from the slot to the task should be short.
  const bool slots_wait = dynamic.waits(), owns = dynamic.pinned != 0;
  Stamped found{};
  uint32_t place = 0;
  const bool came = wait_until(working.idle_deadline(), what, [&] {
    constexpr uint32_t kPolls = 8;
    KEEP_ROLLED
    for (uint32_t poll = 0; poll < kPolls; ++poll) {
      // Relaxed, and on their way together: a slot only assigns the task, and the event is acquired
      // once it has come.
      found = load<Order::relaxed, Scope::gpu>(slot);
      const uint64_t have = load<Order::relaxed, Scope::sys>(counter);
      // A slot that is filled comes first: a worker whose own queue had something as well would
      // otherwise leave before it has seen that the expected task's event has come.
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
    // Relaxed: this thread has read what will be written over, and the scheduler reads this before
    // it does; all that happens to one word.
    store<Order::relaxed, Scope::gpu>(slot, Stamped{stamp, kTaken});
  if (found.value == kStop) return decide(working, Verdict::Kind::stop);
  if (found.value != ticket.place.bits) return order_other(working, found.value, iteration, true);
  if (wait.remote != 0)
    fence_acquire<Scope::sys>();
  else
    fence_acquire<Scope::gpu>();
  order_packet(working, PacketOrder::next(head.follower, true));
}

/// By one thread: until the ticket's slot is filled and, if with the expected task, its first event
/// has come, or until there is something else to do.
DEVICE void look_out(const Working& working, uint32_t slot, uint64_t iteration) {
  look_out_apart(&working.params, &working.shared, &working.idle, working.began_ns,
                 working.meetings, slot, iteration);
}

/// By one thread: until another event of the expected task has come, unless that is not to run.
DEVICE_APART void await_expected_apart(const RunParams* run, WorkerShared* shared,
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

/// By one thread: until the iteration of a task that is expected, or has come, has begun; false if
/// the task is not to run. Acquire: what comes before the iteration.
DEVICE_APART bool await_iteration_apart(const RunParams* run, WorkerShared* shared,
                                        const WaitContext* idle, uint32_t meetings,
                                        uint64_t iteration) {
  const RunParams& params = *run;
  const Working working = working_apart(run, shared, idle, meetings);
  Awaited what{.phase = phase_of(params, RunPhase::packet), .rank = params.rank};
  bool begun = false;
  if (!wait_until(working.idle_deadline(), what, [&] {
        const uint64_t seen = load<Order::acquire, Scope::gpu>(&params.workspace->begun);
        // (What the run before has left is no iteration.)
        begun = seen > iteration && seen < kRunStopped;
        return begun || is_decided(working);
      }))
    fail_awaiting_task(working);
  return begun;
}

DEVICE void await_expected_event(const Working& working, const WaitRecord& wait,
                                 uint64_t iteration) {
  await_expected_apart(&working.params, &working.shared, &working.idle, working.meetings, &wait,
                       iteration);
}
DEVICE bool await_iteration(const Working& working, uint64_t iteration) {
  return await_iteration_apart(&working.params, &working.shared, &working.idle, working.meetings,
                               iteration);
}

}  // namespace tokenyard::megakernel
