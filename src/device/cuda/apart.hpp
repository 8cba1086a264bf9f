#pragma once

#include "device/apart.hpp"
#include "device/cuda/ptx.hpp"

namespace tokenyard {

template <class T>
DEVICE T* settled(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}
DEVICE uint32_t settled(uint32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}

DEVICE SettledWord::SettledWord(const uint32_t& word)
    : address_(settled(ptx::shared_address(&word))) {}

// ld.relaxed.cta.shared::cta.u32 d, [a];
DEVICE uint32_t SettledWord::load() const {
  uint32_t value;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(address_) : "memory");
  return value;
}

namespace cuda_body {
// Registers, one by one: a struct would go by memory.
DEVICE_APART void fail(const Patience* patience, uint64_t start_ns, Failure failure, uint32_t phase,
                       uint32_t rank, uint64_t expected, uint64_t seen) {
  Deadline(*patience, start_ns).fail(failure, {phase, rank, expected, seen});
}
// As Deadline::give_up, but the alarm is listened to by count alone: whoever waits in these loops
// seldom sleeps, and time is counted from the start of a call of many waits.
DEVICE_APART bool give_up_listening_by_count(const Patience* patience, uint64_t start_ns,
                                             uint32_t polls, uint32_t phase, uint32_t rank,
                                             uint64_t expected, uint64_t seen) {
  const Deadline deadline(*patience, start_ns);
  if (deadline.failed()) return true;
  const bool late = now_ns() - start_ns >= patience->timeout_ns;
  // Relaxed: the host says only that it wants the call to end.
  if (!late &&
      (polls % kListenEvery != 0 || load<Order::relaxed, Scope::sys>(patience->alarm) == kNoAlarm))
    return false;
  deadline.fail(late ? Failure::deadline : Failure::alarm, {phase, rank, expected, seen});
  return true;
}
// As Deadline::give_up.
DEVICE_APART bool give_up(const Patience* patience, uint64_t start_ns, uint32_t polls,
                          uint32_t phase, uint32_t rank, uint64_t expected, uint64_t seen) {
  return Deadline(*patience, start_ns).give_up(polls, {phase, rank, expected, seen});
}
}  // namespace cuda_body

template <Listening listening>
DEVICE void SharedDeadline<listening>::fail(Failure failure, const Awaited& what) const {
  cuda_body::fail(&patience_, start_ns_, failure, what.phase, what.rank, what.expected, what.seen);
}

template <Listening listening>
DEVICE bool SharedDeadline<listening>::give_up(uint32_t polls, const Awaited& what) const {
  if (polls % cuda_body::kLookEvery != 0) [[likely]]
    return false;
  constexpr auto give_up =
      listening == Listening::by_count ? cuda_body::give_up_listening_by_count : cuda_body::give_up;
  return give_up(&patience_, start_ns_, polls, what.phase, what.rank, what.expected, what.seen);
}

template <Listening listening, class Condition>
DEVICE bool wait_until(const SharedDeadline<listening>& deadline, Awaited& what,
                       Condition condition) {
  for (uint32_t polls = 1; !condition(); ++polls)
    if (deadline.give_up(polls, what)) [[unlikely]]
      return false;
  return true;
}

}  // namespace tokenyard
