/// Waiting on a host: every failed poll lets other threads run, so the clock, the failure word and
/// the alarm can be looked at each time.
#pragma once

#include "device/host/memory.hpp"
#include "device/host/time.hpp"
#include "device/wait.hpp"

namespace tokenyard {

DEVICE Deadline Patience::start() const {
  return Deadline(*this, now_ns());
}

DEVICE bool Deadline::failed() const {
  // Relaxed: the word says only that the call failed, and nothing else is read on its strength.
  return load<Order::relaxed, Scope::gpu>(patience_.failed) != static_cast<uint32_t>(Failure::none);
}

DEVICE void Deadline::fail(Failure failure, const Awaited& what) const {
  // The first to fail owns the report; relaxed, since `failed` orders nothing but itself.
  const auto first = compare_exchange<Order::relaxed, Scope::gpu>(
      patience_.failed, static_cast<uint32_t>(Failure::none), static_cast<uint32_t>(failure));
  if (first != static_cast<uint32_t>(Failure::none)) return;
  WaitReport& report = *patience_.report;
  report.phase = what.phase;
  report.rank = what.rank;
  report.block = host_body::machine().identity().block;
  report.expected = what.expected;
  report.seen = what.seen;
  report.waited_ns = now_ns() - start_ns_;
  // Publishes the fields above to the host, which acquires it.
  store<Order::release, Scope::sys>(&report.failure, static_cast<uint32_t>(failure));
}

DEVICE bool Deadline::give_up(uint32_t, const Awaited& what) const {
  if (failed()) return true;
  if (now_ns() - start_ns_ >= patience_.timeout_ns) {
    fail(Failure::deadline, what);
    return true;
  }
  // Relaxed: the host says only that it wants the call to end.
  if (load<Order::relaxed, Scope::sys>(patience_.alarm) == kNoAlarm) return false;
  fail(Failure::alarm, what);
  return true;
}

template <class Condition>
DEVICE bool wait_until(const Deadline& deadline, Awaited& what, Condition condition) {
  for (uint32_t polls = 1; !condition(); ++polls) {
    if (deadline.give_up(polls, what)) return false;
    host_body::machine().spin(what.phase, what.rank, what.expected, what.seen, host_body::here());
  }
  return true;
}

}  // namespace tokenyard
