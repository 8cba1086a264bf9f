#pragma once

#include "device/apart.hpp"
#include "device/cuda/ptx.hpp"

namespace tokenyard {

template <class T>
TOKENYARD_DEVICE T* settled(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}
TOKENYARD_DEVICE uint32_t settled(uint32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}

TOKENYARD_DEVICE SettledWord::SettledWord(const uint32_t& word)
    : address_(settled(ptx::shared_address(&word))) {}

// ld.relaxed.cta.shared::cta.u32 d, [a];
TOKENYARD_DEVICE uint32_t SettledWord::load() const {
  uint32_t value;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(address_) : "memory");
  return value;
}

namespace cuda_body {
// Separate parameters, which travel in registers; a struct would be passed in memory.
TOKENYARD_DEVICE_APART void fail(const WaitContext* wait_context, uint64_t start_ns,
                                 Failure failure, uint32_t phase, uint32_t rank, uint64_t expected,
                                 uint64_t seen) {
  Deadline(*wait_context, start_ns).fail(failure, {phase, rank, expected, seen});
}
/// The result of a wait that gives up; no poll counter reaches it.
inline constexpr uint32_t kGivenUp = UINT32_MAX;
// Both functions return the poll counter to continue with, or kGivenUp.
// The first differs from Deadline::give_up in polling the abort flag by count alone: threads in
// these loops rarely sleep, and elapsed time counts from the start of a call with many waits.
TOKENYARD_DEVICE_APART uint32_t give_up_listening_by_count(const WaitContext* wait_context,
                                                           uint64_t start_ns, uint32_t polls,
                                                           uint32_t phase, uint32_t rank,
                                                           uint64_t expected, uint64_t seen,
                                                           bool from_rank) {
  const Deadline deadline(*wait_context, start_ns);
  const Awaited what{phase, rank, expected, seen, from_rank};
  if (deadline.failed()) return kGivenUp;
  if (now_ns() - start_ns >= wait_context->timeout_ns) {
    deadline.fail(Failure::deadline, what);
    return kGivenUp;
  }
  if (polls < kPollsMax && polls % kListenEvery != 0) return polls;
  return deadline.heed_host(polls, what) ? kGivenUp : polls;
}
// Does what Deadline::give_up does.
TOKENYARD_DEVICE_APART uint32_t give_up(const WaitContext* wait_context, uint64_t start_ns,
                                        uint32_t polls, uint32_t phase, uint32_t rank,
                                        uint64_t expected, uint64_t seen, bool from_rank) {
  const Awaited what{phase, rank, expected, seen, from_rank};
  return Deadline(*wait_context, start_ns).give_up(polls, what) ? kGivenUp : polls;
}
}  // namespace cuda_body

template <Listening listening>
TOKENYARD_DEVICE void SharedDeadline<listening>::fail(Failure failure, const Awaited& what) const {
  cuda_body::fail(&wait_context_, start_ns_, failure, what.phase, what.rank, what.expected,
                  what.seen);
}

template <Listening listening>
TOKENYARD_DEVICE bool SharedDeadline<listening>::give_up(uint32_t& polls,
                                                         const Awaited& what) const {
  if (polls % cuda_body::kLookEvery != 0) [[likely]]
    return false;
  constexpr auto give_up =
      listening == Listening::by_count ? cuda_body::give_up_listening_by_count : cuda_body::give_up;
  polls = give_up(&wait_context_, start_ns_, polls, what.phase, what.rank, what.expected, what.seen,
                  what.from_rank);
  return polls == cuda_body::kGivenUp;
}

template <Listening listening, class Condition>
TOKENYARD_DEVICE bool wait_until(const SharedDeadline<listening>& deadline, Awaited& what,
                                 Condition condition) {
  for (uint32_t polls = 1; !condition(); ++polls)
    if (deadline.give_up(polls, what)) [[unlikely]]
      return false;
  return true;
}

}  // namespace tokenyard
