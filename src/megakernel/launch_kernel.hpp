/// Signals of static and of dynamic runs: what the last one of an event does besides.
#pragma once

#include "megakernel/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// What a scheduler's queue holds: an event, or one of these.
inline constexpr uint32_t kBegin = UINT32_MAX, kEnded = UINT32_MAX - 1, kStop = UINT32_MAX - 2;

/// For push_event. What it needs where all goes well it gets as values: an acquire has just emptied
/// the cache through which it would look them up.
DEVICE_APART void push_apart(std::byte* queue_at, uint32_t slots, uint32_t value, bool shared_queue,
                             const RunParams* params, WorkerShared* shared, const Patience* idle,
                             uint64_t began_ns, uint32_t meetings, uint32_t rank) {
  const Working working{.params = *params,
                        .shared = *shared,
                        .idle = *idle,
                        .began_ns = began_ns,
                        .meetings = meetings};
  Awaited what{.rank = rank};
  const Queue queue(Peer<std::byte>(queue_at), slots);
  const bool pushed = shared_queue ? queue.push_fenced<Scope::sys>(working.deadline(), what, value)
                                   : queue.push_fenced<Scope::gpu>(working.deadline(), what, value);
  if (!pushed)
    stall(working,
          {.what = Stalled::queue, .rank = rank, .need = what.expected, .have = what.seen});
}
/// By one thread, after fence_for_events.
DEVICE void push_event(const Working& working, uint32_t rank, uint32_t scheduler, uint32_t value) {
  const RunParams& params = working.params;
  push_apart(params.windows.event_queue_at(rank, scheduler).address(),
             params.windows.layout.event_slots, value, params.ranks > 1, &params, &working.shared,
             &working.idle, working.began_ns, working.meetings, rank);
}
/// Before events are signalled and pushed: acquire and release, for all ranks that there are. One
/// fence serves all of them, since what follows it is relaxed.
DEVICE void fence_for_events(const RunParams& params) {
  if (params.ranks > 1)
    fence<Scope::sys>();
  else
    fence<Scope::gpu>();
}

/// An event of a rank is complete: its schedulers must know.
DEVICE void announce(const Working& working, uint32_t rank, uint32_t event, Launch launch) {
  if (launch == Launch::nobody) return;
  const uint32_t schedulers = working.params.dynamic.schedulers;
  if (launch != Launch::every)
    return push_event(
        working, rank,
        launch == Launch::follower ? event % schedulers : static_cast<uint32_t>(launch), event);
  for (uint32_t i = 0; i < schedulers; ++i) push_event(working, rank, i, event);
}

struct SignalTo {
  uint32_t event, rank, count, triggers;
  Launch launch;
  uint64_t iteration;
};

/// By one thread of a dynamic run, after fence_for_events. The counter is for those who look at it
/// themselves: waits for an earlier iteration, and for the loop's end.
template <Scope scope>
DEVICE void signal_event(const Working& working, const SignalTo& to) {
  const Peer<uint64_t> counter = working.params.windows.counter(to.rank, to.event);
  // Relaxed: see fence_for_events.
  if (to.launch == Launch::nobody || to.count == to.triggers) {  // Nobody else signals it.
    add<Order::relaxed, scope>(counter, to.count);
    return announce(working, to.rank, to.event, to.launch);
  }
  const uint64_t before = fetch_add<Order::relaxed, scope>(counter, to.count);
  // Signals come iteration by iteration. (To divide would take a third of a fence.)
  if (before + to.count != to.triggers * (to.iteration + 1)) return;
  // The last one passes on what all the others did.
  fence_for_events(working.params);
  announce(working, to.rank, to.event, to.launch);
}

/// A signal of a static run, where nobody has to be told, with its counter looked up: that of
/// another rank lies in a table.
///
/// Within this GPU it is sent in two steps, so that something may be looked at meanwhile: once it
/// is added, what the calling thread knew when it was released is what the event is about.
struct CountedSignal {
  Peer<uint64_t> counter;
  uint32_t count;  ///< 0: there is none
  bool sys;

  DEVICE static CountedSignal of(const RunParams& params, const SignalRecord& record) {
    return {params.windows.counter(record.rank, record.event), record.count, record.sys != 0};
  }
  DEVICE void release() const {
    if (is_near()) [[likely]]
      fence_release<Scope::gpu>();
  }
  DEVICE void add_released() const {
    // One scope for all who add to a counter: only then are their additions whole.
    if (is_near()) [[likely]]
      add<Order::relaxed, Scope::gpu>(counter, count);  // After the fence.
    else if (count != 0)
      add<Order::release, Scope::sys>(counter, count);
  }
  DEVICE void send() const {
    release();
    add_released();
  }

 private:
  DEVICE bool is_near() const { return count != 0 && !sys; }
};

/// Asks the feeder to bring a follower's packet next, while the task before it runs. False if there
/// is one already.
DEVICE bool bring_follower(const Working& working, const SignalRecord& record) {
  // Relaxed: packets never change. The follower runs after the task because it is brought later.
  return compare_exchange<Order::relaxed, Scope::block>(&working.shared.follower, 0,
                                                        record.triggers) == 0;
}

/// Of a dynamic run, as signal_event.
DEVICE void signal_record(const Working& working, const SignalRecord& record, uint64_t iteration) {
  const SignalTo to{.event = record.event,
                    .rank = record.rank,
                    .count = record.count,
                    .triggers = record.launch == Launch::follower ? record.count : record.triggers,
                    .launch = record.launch,
                    .iteration = iteration};
  if (record.sys != 0)
    signal_event<Scope::sys>(working, to);
  else
    signal_event<Scope::gpu>(working, to);
}

/// From the body of a task, to a dynamic event of this rank.
DEVICE void signal_dynamic(const Working& working, uint32_t event, uint32_t count,
                           uint64_t iteration) {
  const RunParams& params = working.params;
  if (count == 0) return;
  if (params.dynamic.schedulers == 0)
    return add<Order::release, Scope::sys>(params.windows.counter(params.rank, event), count);
  const EventRecord& record = params.events[event];
  fence_for_events(params);
  signal_event<Scope::sys>(working, {.event = event,
                                     .rank = params.rank,
                                     .count = count,
                                     .triggers = record.triggers,
                                     .launch = record.launch,
                                     .iteration = iteration});
}

}  // namespace tokenyard::megakernel
