/// The only way to wait in a kernel: with a deadline, an eye on the host's alarm, and a name for
/// what is awaited. A wait that fails writes one report for the host and marks the whole call as
/// failed; every other wait of the call on this rank then gives up as well. No kernel traps or
/// hangs.
#pragma once

#include <cstdint>

#include "device/cold.hpp"
#include "device/memory.hpp"
#include "device/time.hpp"

namespace tokenyard {

/// Why a call failed. `left`: the rank awaited has said goodbye, and what was awaited had not come.
enum class Failure : uint32_t { none, deadline, abort_flag, refused, left };

/// What a failed wait saw. Lies in memory that host and kernels share; written once a call, by the
/// wait that failed first, `failure` last (release, sys).
struct WaitReport {
  uint32_t failure;  ///< a Failure
  uint32_t phase;    ///< of the kernel's Phase enum
  uint32_t rank;     ///< the rank awaited
  uint32_t block;    ///< the block that waited
  uint64_t expected, seen;
  uint64_t waited_ns;
};

/// Set by the host to end waits of a rank, in memory that host and kernels share. kCancelled and
/// the loss of a rank end every wait. kLeft: some ranks have said goodbye; behind this word lies
/// one for each rank, which is kLeft for those. A goodbye ends only a wait that its rank alone
/// could end, and only after one more look: the rank may have stored what is awaited before it
/// left.
using AbortWord = uint32_t;
inline constexpr AbortWord kNoAbort = 0;
inline constexpr AbortWord kCancelled = 1;
inline constexpr AbortWord kLeft = 2;
inline constexpr AbortWord abort_for_lost(uint32_t rank) {
  return 3 + rank;
}

class Deadline;

/// How long a call may take, who may end it early, and where it reports. Part of a kernel's params.
struct WaitContext {
  uint64_t timeout_ns = 0;
  uint32_t* failed = nullptr;  ///< device memory: a Failure; none until the first wait fails, and
                               ///< cleared, if at all, by the host while no kernel runs
  const AbortWord* abort_flag = nullptr;  ///< host-visible; where it may be kLeft, [1 + ranks]
  WaitReport* report = nullptr;           ///< host-visible

  DEVICE Deadline start() const;
};

/// What a wait is for. The predicate of wait_until keeps `seen` up to date.
struct Awaited {
  uint32_t phase = 0;
  uint32_t rank = 0;
  uint64_t expected = 0;
  uint64_t seen = 0;
  bool from_rank = true;  ///< `rank` stores it, and nobody else: a goodbye of `rank` ends the wait
};

/// Polls of a wait are counted up to here. The counts from here on say that the wait has seen the
/// goodbye of a rank, and has its last look next: the count after the code of that rank.
inline constexpr uint32_t kPollsMax = 0xf0000000;
HOST_DEVICE constexpr uint32_t last_look_for(uint32_t rank) {
  return kPollsMax + (rank + 1) * 64;  // A multiple of what passes between looks on a GPU.
}

/// A point in time, taken once at the start of the kernel: waits do not add up.
class Deadline {
 public:
  DEVICE Deadline(const WaitContext& wait_context, uint64_t start_ns)
      : wait_context_(wait_context), start_ns_(start_ns) {}
  /// Whether a wait of this call has failed on this rank. Ask after a block barrier, so that the
  /// whole block gets the answers of its own waits.
  DEVICE bool failed() const;
  /// Fails the call for a reason of the kernel's own (bad data): waits on this rank give up.
  DEVICE void fail(Failure failure, const Awaited& what) const;
  /// For wait_until, which counts up `polls` whenever the condition has been found false. Sets it
  /// to have the condition looked at once more before the goodbye of a rank ends the wait.
  DEVICE bool give_up(uint32_t& polls, const Awaited& what) const;
  /// For loops whose waits may all be too short to look at the host's alarm, which lies across
  /// PCIe: looks now, and fails the call if it rings. Whether the call has failed.
  DEVICE bool heed_abort(const Awaited& what) const;

  /// The part of give_up that looks at the host's alarm.
  DEVICE bool heed_host(uint32_t& polls, const Awaited& what) const;

 private:
  const WaitContext& wait_context_;
  uint64_t start_ns_;
};

/// Returns why the host wants a wait to end: none, alarm or left. Looks across PCIe.
COLD Failure host_asks(const WaitContext& wait_context, const Awaited& what) {
  // Relaxed: the host says only that it wants the wait to end.
  const AbortWord abort_flag = load<Order::relaxed, Scope::sys>(wait_context.abort_flag);
  if (abort_flag == kNoAbort) return Failure::none;
  if (abort_flag != kLeft) return Failure::abort_flag;
  if (!what.from_rank) return Failure::none;
  // Acquire: the last look finds what the rank stored before it said goodbye.
  const AbortWord theirs =
      load<Order::acquire, Scope::sys>(wait_context.abort_flag + 1 + what.rank);
  return theirs == kNoAbort ? Failure::none : Failure::left;
}

DEVICE bool Deadline::heed_host(uint32_t& polls, const Awaited& what) const {
  const Failure failure = host_asks(wait_context_, what);
  if (failure == Failure::left && polls != last_look_for(what.rank)) {
    polls = last_look_for(what.rank) - 1;
    return false;
  }
  if (failure == Failure::none) {
    // After a last look that was for another rank, or very many polls.
    if (polls >= kPollsMax) polls = 0;
    return false;
  }
  fail(failure, what);
  return true;
}

/// Waits until `condition()` holds; false if the call failed instead. `what` is taken by reference
/// and read when the wait fails, so `condition` may write what.seen. Every thread waits for itself.
template <class Condition>
DEVICE bool wait_until(const Deadline& deadline, Awaited& what, Condition condition);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/wait.hpp"
#else
#include "device/host/wait.hpp"
#endif
