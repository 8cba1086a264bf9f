/// The only way to wait in a kernel: with a deadline, an eye on the host's alarm, and a name for
/// what is awaited. A wait that fails writes one report for the host and marks the whole call as
/// failed; every other wait of the call on this rank then gives up as well. No kernel traps or
/// hangs.
#pragma once

#include <cstdint>

#include "device/memory.hpp"
#include "device/time.hpp"

namespace tokenyard {

/// Why a call failed.
enum class Failure : uint32_t { none, deadline, alarm, refused };

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

/// Set by the host to end all waits of a rank, in memory that host and kernels share: 0 means go
/// on, 1 that the caller cancelled, 2 + r that rank r is lost.
using Alarm = uint32_t;
inline constexpr Alarm kNoAlarm = 0;
inline constexpr Alarm kCancelled = 1;
inline constexpr Alarm alarm_for_lost(uint32_t rank) {
  return 2 + rank;
}

class Deadline;

/// How long a call may take, who may end it early, and where it reports. Part of a kernel's params.
struct Patience {
  uint64_t timeout_ns = 0;
  uint32_t* failed = nullptr;    ///< device memory: a Failure; none until the first wait fails, and
                                 ///< cleared, if at all, by the host while no kernel runs
  const Alarm* alarm = nullptr;  ///< host-visible
  WaitReport* report = nullptr;  ///< host-visible

  DEVICE Deadline start() const;
};

/// What a wait is for. The predicate of wait_until keeps `seen` up to date.
struct Awaited {
  uint32_t phase = 0;
  uint32_t rank = 0;
  uint64_t expected = 0;
  uint64_t seen = 0;
};

/// A point in time, taken once at the start of the kernel: waits do not add up.
class Deadline {
 public:
  DEVICE Deadline(const Patience& patience, uint64_t start_ns)
      : patience_(patience), start_ns_(start_ns) {}
  /// Whether a wait of this call has failed on this rank. Ask after a block barrier, so that the
  /// whole block gets the answers of its own waits.
  DEVICE bool failed() const;
  /// Fails the call for a reason of the kernel's own (bad data): waits on this rank give up.
  DEVICE void fail(Failure failure, const Awaited& what) const;
  /// For wait_until. `polls`: how often the condition has been found false.
  DEVICE bool give_up(uint32_t polls, const Awaited& what) const;
  /// For loops whose waits may all be too short to look at the host's alarm, which lies across
  /// PCIe: looks now, and fails the call if it rings. Whether the call has failed.
  DEVICE bool heed_alarm(const Awaited& what) const;

 private:
  const Patience& patience_;
  uint64_t start_ns_;
};

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
