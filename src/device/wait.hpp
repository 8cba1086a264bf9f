/// A kernel's wait for other ranks. It polls the host's abort flag, names what it waits for, and
/// has a deadline or ends with a wait that has one (guarded_wait.hpp: the caller's own limit). A
/// call's first failed wait writes one report for the host and marks the call as failed, so that
/// its other waits on this rank give up too. No kernel traps or hangs.
#pragma once

#include <cstdint>

#include "device/cold.hpp"
#include "device/memory.hpp"
#include "device/time.hpp"

namespace tokenyard {

/// Why a call failed. `left`: the awaited rank said goodbye before it stored the awaited value.
/// `network`: the network refused a request, as network.hpp tells.
enum class Failure : uint32_t { none, deadline, abort_flag, refused, left, network };

/// The report of a failed wait, in memory shared by host and kernels. The first wait to fail writes
/// it, once per call, and stores `failure` last (release, sys).
struct WaitReport {
  uint32_t failure;  ///< a Failure
  uint32_t phase;    ///< of the kernel's Phase enum
  uint32_t rank;     ///< the rank awaited
  uint32_t block;    ///< the block that waited
  uint64_t expected, seen;
  uint64_t detail;  ///< Failure::network: a packed NetworkFaultDetail; else 0
  uint64_t waited_ns;
};

/// Set by the host, or by a network that refused a request, in memory shared with kernels, to end a
/// rank's waits; only kLeft does not end all. kLeft: some ranks have said goodbye; one word per
/// rank follows this one, and reads kLeft for those ranks. A goodbye ends a wait only if no other
/// rank could satisfy it, after one more poll: the rank may have stored the value before it left.
using AbortWord = uint32_t;
inline constexpr AbortWord kNoAbort = 0;
inline constexpr AbortWord kCancelled = 1;
inline constexpr AbortWord kLeft = 2;
inline constexpr AbortWord kRefused = ~AbortWord{0};  ///< a request of this rank
inline constexpr AbortWord abort_for_lost(uint32_t rank) {
  return 3 + rank;
}

class Deadline;

/// A call's time limit, its abort flag and its error report. Part of a kernel's params.
struct WaitContext {
  uint64_t timeout_ns = 0;
  uint32_t* failed = nullptr;  ///< device memory: a Failure; none until the first wait fails, and
                               ///< cleared, if at all, by the host while no kernel runs
  const AbortWord* abort_flag = nullptr;  ///< host-visible; where it may be kLeft, [1 + ranks]
  WaitReport* report = nullptr;           ///< host-visible

  TOKENYARD_DEVICE Deadline start() const;
};

/// The subject of a wait. The condition passed to wait_until keeps `seen` up to date.
struct Awaited {
  uint32_t phase = 0;
  uint32_t rank = 0;
  uint64_t expected = 0;
  uint64_t seen = 0;
  bool from_rank = true;  ///< only `rank` stores it, so a goodbye from `rank` ends the wait
  uint64_t detail = 0;    ///< of a failure that the kernel finds itself, see WaitReport
};

/// A wait's counter counts polls below this value. From here on it means that the wait has seen a
/// rank's goodbye and polls its condition once more before it fails; the value encodes that rank.
inline constexpr uint32_t kPollsMax = 0xf0000000;
TOKENYARD_HOST_DEVICE constexpr uint32_t last_look_for(uint32_t rank) {
  return kPollsMax + (rank + 1) * 64;  // A GPU's wait acts only on multiples of kLookEvery.
}

/// A call's deadline, fixed when its kernel starts, so that timeouts of its waits do not add up.
class Deadline {
 public:
  TOKENYARD_DEVICE Deadline(const WaitContext& wait_context, uint64_t start_ns)
      : wait_context_(wait_context), start_ns_(start_ns) {}
  /// Returns whether the call has failed on this rank. Call it after a block barrier, so that every
  /// thread of the block sees whether one of the block's own waits failed.
  TOKENYARD_DEVICE bool failed() const;
  /// Fails the call for the kernel's own reason, such as bad data; waits on this rank give up.
  TOKENYARD_DEVICE void fail(Failure failure, const Awaited& what) const;
  /// For wait_until, which increments `polls` each time the condition is false. Sets `polls` so
  /// that the condition is checked once more before a rank's goodbye ends the wait.
  TOKENYARD_DEVICE bool give_up(uint32_t& polls, const Awaited& what) const;
  /// Polls the host's abort flag, across PCIe, and fails the call if it is set. For loops whose
  /// waits may all be too short to poll it themselves. Returns whether the call has failed.
  TOKENYARD_DEVICE bool heed_abort(const Awaited& what) const;

  /// The part of give_up that polls the host's abort flag.
  TOKENYARD_DEVICE bool heed_host(uint32_t& polls, const Awaited& what) const;

 private:
  const WaitContext& wait_context_;
  uint64_t start_ns_;
};

/// Returns why the host wants a wait to end: none, abort_flag, network or left. Reads across PCIe.
TOKENYARD_COLD Failure host_asks(const WaitContext& wait_context, const Awaited& what) {
  // Relaxed: the flag only asks the wait to end; no data depends on it.
  const AbortWord abort_flag = load<Order::relaxed, Scope::sys>(wait_context.abort_flag);
  if (abort_flag == kNoAbort) return Failure::none;
  if (abort_flag == kRefused) {
    // Acquires the refusal: the host looks for it when it has read this wait's report.
    fence_acquire<Scope::sys>();
    return Failure::network;
  }
  if (abort_flag != kLeft) return Failure::abort_flag;
  if (!what.from_rank) return Failure::none;
  // Acquire: the last poll sees everything that the rank stored before it said goodbye.
  const AbortWord theirs =
      load<Order::acquire, Scope::sys>(wait_context.abort_flag + 1 + what.rank);
  return theirs == kNoAbort ? Failure::none : Failure::left;
}

TOKENYARD_DEVICE bool Deadline::heed_host(uint32_t& polls, const Awaited& what) const {
  const Failure failure = host_asks(wait_context_, what);
  if (failure == Failure::left && polls != last_look_for(what.rank)) {
    polls = last_look_for(what.rank) - 1;
    return false;
  }
  if (failure == Failure::none) {
    // Reached after a last look for another rank's goodbye, or after very many polls.
    if (polls >= kPollsMax) polls = 0;
    return false;
  }
  fail(failure, what);
  return true;
}

/// Waits until `condition()` holds; returns false if the call failed first. `what` is read only
/// when the wait fails, so `condition` may write what.seen. Each thread waits on its own.
template <class Condition>
TOKENYARD_DEVICE bool wait_until(const Deadline& deadline, Awaited& what, Condition condition);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/wait.hpp"
#else
#include "device/host/wait.hpp"
#endif
