/// How a scheduler gives tasks to workers: through the rank's queue, or the queue of one of them.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// For Publisher: waits until the slot of a ticket may be written again, if it must. A lane stores
/// as soon as it may, since another one's slot may be waiting for that.
DEVICE_APART void publish_apart(const RunParams* params, const WaitContext* idle, uint64_t began_ns,
                                bool leads, uint64_t ticket, uint64_t free_tickets,
                                uint32_t value) {
  const DynamicParams& dynamic = params->dynamic;
  Stamped* const slot = dynamic.slot_of(ticket);
  Awaited what{.phase = phase_of(*params, RunPhase::queue), .rank = params->rank};
  // Full queues are what holds schedulers back; the leader's deadline ends the run if they stay.
  const DeadlineApart deadline(leads ? params->wait_context : *idle, began_ns);
  wait_until(deadline, what, [&] {
    if (ticket >= free_tickets) {
      // Relaxed: all that happens to one word.
      const Stamped now = load<Order::relaxed, Scope::gpu>(slot);
      if (now.epoch != stamp_of(ticket - dynamic.slot_count) || now.value != kTaken) return false;
    }
    store<Order::relaxed, Scope::gpu>(slot, Stamped{stamp_of(ticket), value});
    return true;
  });
}

/// By the scheduler's warp. What it stores only assigns tasks, so it fences nothing.
class Publisher {
 public:
  DEVICE Publisher(const Working& working, SchedulerShared& shared, uint32_t scheduler)
      : working_(working),
        dynamic_(working.params.dynamic),
        shared_(shared),
        scheduler_(scheduler),
        next_ticket_(dynamic_.first_ticket),
        free_tickets_(dynamic_.waits() ? dynamic_.slot_count : UINT64_MAX) {}

  /// By all lanes: the first of so many tickets.
  DEVICE uint64_t take_tickets(uint32_t count) {
    if (count == 0) return next_ticket_;
    if (dynamic_.schedulers > 1)
      // Relaxed: tickets only say which slots.
      return warp::once(
          [&] { return fetch_add<Order::relaxed, Scope::gpu>(dynamic_.published, count); });
    const uint64_t first = next_ticket_;
    next_ticket_ += count;
    return first;
  }

  /// By all lanes: tasks whose places lie there.
  DEVICE void publish(uint32_t count, const uint32_t* places) {
    const uint64_t ticket = take_tickets(count);
    const bool has_room = ticket + count <= free_tickets_;
    KEEP_ROLLED
    for (uint32_t i = warp::lane(); i < count; i += kWarpLanes)
      publish_one(ticket + i, places[i], has_room);
  }
  /// By one lane.
  DEVICE void publish_one(uint64_t ticket, uint32_t value, bool has_room) const {
    if (has_room)
      // Relaxed: it only assigns the task.
      store<Order::relaxed, Scope::gpu>(dynamic_.slot_of(ticket), Stamped{stamp_of(ticket), value});
    else
      publish_apart(&working_.params, &working_.idle, working_.began_ns, scheduler_ == 0, ticket,
                    free_tickets_, value);
  }
  /// Whether the next tasks are sure to go to the next slots, which are free.
  DEVICE bool knows_slots(uint32_t tasks) const {
    return dynamic_.schedulers == 1 && has_room(next_ticket_ + tasks);
  }
  DEVICE uint64_t next_ticket() const { return next_ticket_; }
  DEVICE bool has_room(uint64_t end) const { return end <= free_tickets_; }

  /// By one lane: a task that only one worker runs.
  DEVICE void give(uint32_t worker, uint32_t value) const {
    Awaited what{.phase = phase_of(working_.params, RunPhase::queue), .rank = working_.params.rank};
    // Relaxed: the ticket only says which slot. Acquire and release: a lane that writes over a
    // slot because another one has heard that it was taken must know what that one heard.
    const uint64_t ticket = fetch_add<Order::relaxed, Scope::block>(&shared_.sent[worker], 1);
    uint64_t taken = load<Order::acquire, Scope::block>(&shared_.taken[worker]);
    const uint64_t known = taken;
    fence<Scope::gpu>();  // Release: the iteration has begun.
    dynamic_.task_queue(worker, scheduler_).put<Scope::gpu>(deadline(), what, ticket, taken, value);
    if (taken != known) store<Order::release, Scope::block>(&shared_.taken[worker], taken);
  }

  /// What workers' own queues have had is kept from run to run.
  DEVICE void recall() const {
    for_each_queue([&](uint32_t worker, uint64_t& kept) {
      shared_.sent[worker] = kept;
      shared_.taken[worker] = 0;
    });
  }
  DEVICE void keep() const {
    for_each_queue([&](uint32_t worker, uint64_t& kept) { kept = shared_.sent[worker]; });
  }

 private:
  /// Full queues are what holds schedulers back; the leader's deadline ends the run if they stay.
  DEVICE DeadlineApart deadline() const {
    return scheduler_ == 0 ? working_.deadline() : working_.idle_deadline();
  }
  template <class Body>
  DEVICE void for_each_queue(Body body) const {
    const uint32_t workers = working_.params.workers;
    if (dynamic_.pinned == 0) return;
    for (uint32_t worker = warp::lane(); worker < workers; worker += kWarpLanes)
      body(worker, dynamic_.sent[size_t{scheduler_} * workers + worker]);
  }

  const Working& working_;
  const DynamicParams& dynamic_;
  SchedulerShared& shared_;
  const uint32_t scheduler_;
  uint64_t next_ticket_;  ///< of the rank's only scheduler
  /// Slots of those below need not be waited for: all, where tasks of the iteration before have had
  /// whatever slot a task gets. Else only the first lap's: a worker may say late that it has taken
  /// a task, when that has long ended.
  const uint64_t free_tickets_;
};

}  // namespace tokenyard::megakernel
