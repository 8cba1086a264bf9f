/// Signals of static and of dynamic runs: what the last one of an event does besides.
#pragma once

#include "megakernel/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// What a scheduler's queue holds: an event, or one of these.
inline constexpr uint32_t kBegin = UINT32_MAX, kEnded = UINT32_MAX - 1, kStop = UINT32_MAX - 2;

DEVICE void push_event(const Working& working, uint32_t rank, uint32_t scheduler, uint32_t value) {
  Awaited what{.phase = phase_of(working.params, RunPhase::queue), .rank = rank};
  const Queue queue = working.params.windows.event_queue(rank, scheduler);
  const bool pushed = working.params.ranks > 1
                          ? queue.push<Scope::sys>(working.deadline(), what, value)
                          : queue.push<Scope::gpu>(working.deadline(), what, value);
  if (!pushed)
    stall(working,
          {.what = Stalled::queue, .rank = rank, .need = what.expected, .have = what.seen});
}

/// An event of a rank is complete: its schedulers must know.
DEVICE void announce(const Working& working, uint32_t rank, uint32_t event, Launch launch) {
  if (launch == Launch::nobody) return;
  if (launch != Launch::every)
    return push_event(working, rank, static_cast<uint32_t>(launch), event);
  for (uint32_t i = 0; i < working.params.dynamic.schedulers; ++i)
    push_event(working, rank, i, event);
}

struct SignalTo {
  uint32_t event, rank, count, triggers;
  Launch launch;
};

/// By one thread, after what it signals. Release at least: that is what the event is about. In a
/// dynamic run acquire as well: the last one passes on what all the others did.
template <Scope scope>
DEVICE void signal_event(const Working& working, const SignalTo& to) {
  const Peer<uint64_t> counter = working.params.windows.counter(to.rank, to.event);
  if (working.params.dynamic.schedulers == 0 || to.launch == Launch::nobody)
    return add<Order::release, scope>(counter, to.count);
  if (to.count == to.triggers) {  // Nobody else signals it.
    add<Order::release, scope>(counter, to.count);
    return announce(working, to.rank, to.event, to.launch);
  }
  const uint64_t before = fetch_add<Order::acq_rel, scope>(counter, to.count);
  if (before / to.triggers != (before + to.count) / to.triggers)
    announce(working, to.rank, to.event, to.launch);
}

/// Of a static run: nobody has to be told.
DEVICE void count_signal(const RunParams& params, const SignalRecord& record) {
  const Peer<uint64_t> counter = params.windows.counter(record.rank, record.event);
  // One scope for all who add to a counter: only then are their additions whole.
  if (record.sys != 0)
    add<Order::release, Scope::sys>(counter, record.count);
  else
    add<Order::release, Scope::gpu>(counter, record.count);
}

DEVICE void signal_record(const Working& working, const SignalRecord& record) {
  const SignalTo to{.event = record.event,
                    .rank = record.rank,
                    .count = record.count,
                    .triggers = record.triggers,
                    .launch = record.launch};
  if (record.sys != 0)
    signal_event<Scope::sys>(working, to);
  else
    signal_event<Scope::gpu>(working, to);
}

/// From the body of a task, to a dynamic event of this rank.
DEVICE void signal_dynamic(const Working& working, uint32_t event, uint32_t count) {
  const EventRecord& record = working.params.events[event];
  if (count > 0)
    signal_event<Scope::sys>(working, {.event = event,
                                       .rank = working.params.rank,
                                       .count = count,
                                       .triggers = record.triggers,
                                       .launch = record.launch});
}

}  // namespace tokenyard::megakernel
