/// How a scheduler gives tasks to workers: through the rank's queue or through one worker's queue.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// Stores a value into the slot of a ticket, for Publisher; waits first, if the slot must be free.
/// A lane stores as soon as possible, since another lane's slot may depend on it.
TOKENYARD_DEVICE_APART void publish_apart(const RunParams* params, const WaitContext* idle,
                                          uint64_t began_ns, bool leads, uint64_t ticket,
                                          uint64_t free_tickets, uint32_t value) {
  const DynamicParams& dynamic = params->dynamic;
  Stamped* const slot = dynamic.slot_of(ticket);
  Awaited what{.phase = phase_of(*params, RunPhase::queue), .rank = params->rank};
  // A full queue holds schedulers back; if it stays full, the leader's deadline ends the run.
  const DeadlineApart deadline(leads ? params->wait_context : *idle, began_ns);
  wait_until(deadline, what, [&] {
    if (ticket >= free_tickets) {
      // Relaxed: all accesses are to one word.
      const Stamped now = load<Order::relaxed, Scope::gpu>(slot);
      if (now.epoch != stamp_of(ticket - dynamic.slot_count) || now.value != kTaken) return false;
    }
    store<Order::relaxed, Scope::gpu>(slot, Stamped{stamp_of(ticket), value});
    return true;
  });
}

/// Used by the scheduler's warp. Its stores only assign tasks, so it fences nothing.
class Publisher {
 public:
  TOKENYARD_DEVICE Publisher(const Working& working, SchedulerShared& shared, uint32_t scheduler)
      : working_(working),
        dynamic_(working.params.dynamic),
        shared_(shared),
        scheduler_(scheduler),
        next_ticket_(dynamic_.first_ticket),
        free_tickets_(dynamic_.waits() ? dynamic_.slot_count : UINT64_MAX) {}

  /// Takes `count` tickets and returns the first, by all lanes.
  TOKENYARD_DEVICE uint64_t take_tickets(uint32_t count) {
    if (count == 0) return next_ticket_;
    if (dynamic_.schedulers > 1)
      // Relaxed: tickets only select slots.
      return warp::once(
          [&] { return fetch_add<Order::relaxed, Scope::gpu>(dynamic_.published, count); });
    const uint64_t first = next_ticket_;
    next_ticket_ += count;
    return first;
  }

  /// Publishes `count` tasks, by all lanes.
  TOKENYARD_DEVICE void publish(uint32_t count, const uint32_t* places) {
    const uint64_t ticket = take_tickets(count);
    const bool has_room = ticket + count <= free_tickets_;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = warp::lane(); i < count; i += kWarpLanes)
      publish_one(ticket + i, places[i], has_room);
  }
  /// Publishes one task, by one lane.
  TOKENYARD_DEVICE void publish_one(uint64_t ticket, uint32_t value, bool has_room) const {
    if (has_room)
      // Relaxed: the store only assigns the task.
      store<Order::relaxed, Scope::gpu>(dynamic_.slot_of(ticket), Stamped{stamp_of(ticket), value});
    else
      publish_apart(&working_.params, &working_.idle, working_.began_ns, scheduler_ == 0, ticket,
                    free_tickets_, value);
  }
  /// Returns whether the next tasks will certainly go to the next slots, and these are free.
  TOKENYARD_DEVICE bool knows_slots(uint32_t tasks) const {
    return dynamic_.schedulers == 1 && has_room(next_ticket_ + tasks);
  }
  TOKENYARD_DEVICE uint64_t next_ticket() const { return next_ticket_; }
  TOKENYARD_DEVICE bool has_room(uint64_t end) const { return end <= free_tickets_; }

  /// Gives a pinned task to its worker, by one lane.
  TOKENYARD_DEVICE void give(uint32_t worker, uint32_t value) const {
    Awaited what{.phase = phase_of(working_.params, RunPhase::queue), .rank = working_.params.rank};
    // Relaxed: the ticket only selects a slot. Acquire and release of `taken`: a lane that
    // overwrites a slot because another lane saw that it was taken must have seen all that the
    // other lane saw.
    const uint64_t ticket = fetch_add<Order::relaxed, Scope::block>(&shared_.sent[worker], 1);
    uint64_t taken = load<Order::acquire, Scope::block>(&shared_.taken[worker]);
    const uint64_t known = taken;
    fence<Scope::gpu>();  // Release: the iteration has begun.
    dynamic_.task_queue(worker, scheduler_).put<Scope::gpu>(deadline(), what, ticket, taken, value);
    if (taken != known) store<Order::release, Scope::block>(&shared_.taken[worker], taken);
  }

  /// Load and store the counts of workers' own queues, which persist from run to run.
  TOKENYARD_DEVICE void recall() const {
    for_each_queue([&](uint32_t worker, uint64_t& kept) {
      shared_.sent[worker] = kept;
      shared_.taken[worker] = 0;
    });
  }
  TOKENYARD_DEVICE void keep() const {
    for_each_queue([&](uint32_t worker, uint64_t& kept) { kept = shared_.sent[worker]; });
  }

 private:
  /// A full queue holds schedulers back; if it stays full, the leader's deadline ends the run.
  TOKENYARD_DEVICE DeadlineApart deadline() const {
    return scheduler_ == 0 ? working_.deadline() : working_.idle_deadline();
  }
  template <class Body>
  TOKENYARD_DEVICE void for_each_queue(Body body) const {
    const uint32_t workers = working_.params.workers;
    if (dynamic_.pinned == 0) return;
    for (uint32_t worker = warp::lane(); worker < workers; worker += kWarpLanes)
      body(worker, dynamic_.sent[size_t{scheduler_} * workers + worker]);
  }

  const Working& working_;
  const DynamicParams& dynamic_;
  SchedulerShared& shared_;
  const uint32_t scheduler_;
  uint64_t next_ticket_;  ///< valid if the rank has one scheduler
  /// Slots of tickets below this need no wait. That is every ticket if a slot's previous task
  /// belongs to the previous iteration; otherwise only those of the first lap, since a worker may
  /// report that it took a task long after the task ended.
  const uint64_t free_tickets_;
};

}  // namespace tokenyard::megakernel
