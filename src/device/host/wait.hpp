/// Waits on a host. Every failed poll switches to other threads, so it can also afford to check the
/// clock, the failure word and the abort flag.
#pragma once

#include "device/host/memory.hpp"
#include "device/host/time.hpp"
#include "device/wait.hpp"

namespace tokenyard {

TOKENYARD_DEVICE Deadline WaitContext::start() const {
  return Deadline(*this, now_ns());
}

namespace host_body {

// The failure path stays out of the kernels' code: the simulator identifies places by code
// address, and so sees one place instead of one per wait.

[[gnu::noinline]] inline bool call_failed(const WaitContext& wait_context) {
  // Relaxed: the word says only that the call failed; no other data depends on it.
  return load<Order::relaxed, Scope::gpu>(wait_context.failed) !=
         static_cast<uint32_t>(Failure::none);
}

[[gnu::noinline]] inline void fail_call(const WaitContext& wait_context, uint64_t start_ns,
                                        Failure failure, const Awaited& what) {
  // The first thread to fail owns the report. Relaxed: `failed` orders no other memory.
  const auto first = compare_exchange<Order::relaxed, Scope::gpu>(
      wait_context.failed, static_cast<uint32_t>(Failure::none), static_cast<uint32_t>(failure));
  if (first != static_cast<uint32_t>(Failure::none)) return;
  WaitReport& report = *wait_context.report;
  report.phase = what.phase;
  report.rank = what.rank;
  report.block = machine().identity().block;
  report.expected = what.expected;
  report.seen = what.seen;
  report.detail = what.detail;
  report.waited_ns = now_ns() - start_ns;
  // Publishes the fields above to the host, which acquires it.
  store<Order::release, Scope::sys>(&report.failure, static_cast<uint32_t>(failure));
}

}  // namespace host_body

TOKENYARD_DEVICE bool Deadline::failed() const {
  return host_body::call_failed(wait_context_);
}

TOKENYARD_DEVICE void Deadline::fail(Failure failure, const Awaited& what) const {
  host_body::fail_call(wait_context_, start_ns_, failure, what);
}

TOKENYARD_DEVICE bool Deadline::heed_abort(const Awaited& what) const {
  if (failed()) return true;
  const Failure failure = host_asks(wait_context_, what);
  if (failure != Failure::abort_flag && failure != Failure::network) return false;
  fail(failure, what);
  return true;
}

TOKENYARD_DEVICE bool Deadline::give_up(uint32_t& polls, const Awaited& what) const {
  if (failed()) return true;
  if (now_ns() - start_ns_ >= wait_context_.timeout_ns) {
    fail(Failure::deadline, what);
    return true;
  }
  return heed_host(polls, what);
}

template <class Condition>
TOKENYARD_DEVICE bool wait_until(const Deadline& deadline, Awaited& what, Condition condition) {
  for (uint32_t polls = 1; !condition(); ++polls) {
    if (deadline.give_up(polls, what)) return false;
    if (polls >= kPollsMax) continue;  // Polls once more at once; nothing new may ever happen.
    host_body::machine().spin(what.phase, what.rank, what.expected, what.seen, host_body::here());
  }
  return true;
}

}  // namespace tokenyard
