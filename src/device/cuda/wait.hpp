/// Waits on a GPU, at the cost of the bare polling loop: a wait whose condition holds at once does
/// nothing else, and one that must poll counts its polls in a register. Every kLookEvery polls it
/// reads the clock and the call's failure word (in this GPU's L2), every kListenEvery polls the
/// host's abort flag (across PCIe). Polls may sleep (Completion::done), so warps also take turns by
/// the clock to read the flag at such a look. More reads would queue up across PCIe, and a wait
/// would last as long as its read: 300 warps that read at each look held up a network's words by
/// 70 us.
#pragma once

#include "device/cuda/memory.hpp"
#include "device/cuda/time.hpp"
#include "device/wait.hpp"

namespace tokenyard {

namespace cuda_body {
inline constexpr uint32_t kLookEvery = 64;      // about 50 us of polling L2
inline constexpr uint32_t kListenEvery = 4096;  // about 3 ms
static_assert(kListenEvery % kLookEvery == 0);
/// A warp's turn lasts 0.26 ms and comes every 17 ms.
inline constexpr uint32_t kTurnBits = 18, kTurns = 64;

TOKENYARD_DEVICE bool is_turn_of_warp(uint64_t now_ns) {
  const uint32_t warp = blockIdx.x * 16 + threadIdx.x / 32;
  return (static_cast<uint32_t>(now_ns >> kTurnBits) ^ warp) % kTurns == 0;
}
static_assert(last_look_for(0) % kLookEvery == 0 && last_look_for(1) % kLookEvery == 0);
}  // namespace cuda_body

TOKENYARD_DEVICE Deadline WaitContext::start() const {
  return Deadline(*this, now_ns());
}

TOKENYARD_DEVICE bool Deadline::failed() const {
  // Relaxed: the word says only that the call failed; no other data depends on it.
  return load<Order::relaxed, Scope::gpu>(wait_context_.failed) !=
         static_cast<uint32_t>(Failure::none);
}

TOKENYARD_DEVICE void Deadline::fail(Failure failure, const Awaited& what) const {
  // The first thread to fail owns the report. Relaxed: `failed` orders no other memory.
  const auto first = compare_exchange<Order::relaxed, Scope::gpu>(
      wait_context_.failed, static_cast<uint32_t>(Failure::none), static_cast<uint32_t>(failure));
  if (first != static_cast<uint32_t>(Failure::none)) return;
  WaitReport& report = *wait_context_.report;
  report.phase = what.phase;
  report.rank = what.rank;
  report.block = blockIdx.x;
  report.expected = what.expected;
  report.seen = what.seen;
  report.detail = what.detail;
  report.waited_ns = now_ns() - start_ns_;
  // Publishes the fields above to the host, which acquires it.
  store<Order::release, Scope::sys>(&report.failure, static_cast<uint32_t>(failure));
}

TOKENYARD_DEVICE bool Deadline::give_up(uint32_t& polls, const Awaited& what) const {
  if (polls % cuda_body::kLookEvery != 0) return false;
  if (failed()) return true;
  const uint64_t now = now_ns();
  if (now - start_ns_ >= wait_context_.timeout_ns) {
    fail(Failure::deadline, what);
    return true;
  }
  if (polls < kPollsMax && polls % cuda_body::kListenEvery != 0 && !cuda_body::is_turn_of_warp(now))
    return false;
  return heed_host(polls, what);
}

TOKENYARD_DEVICE bool Deadline::heed_abort(const Awaited& what) const {
  if (failed()) return true;
  const Failure failure = host_asks(wait_context_, what);
  if (failure != Failure::abort_flag && failure != Failure::network) return false;
  fail(failure, what);
  return true;
}

template <class Condition>
TOKENYARD_DEVICE bool wait_until(const Deadline& deadline, Awaited& what, Condition condition) {
  for (uint32_t polls = 1; !condition(); ++polls)
    if (deadline.give_up(polls, what)) return false;
  return true;
}

}  // namespace tokenyard
