/// How a low-latency call waits for a rank, and shows meanwhile that this rank is alive. A wait
/// ends when its condition holds, or when its rank is masked: failed[rank], set by the first wait
/// that fails, ends all waits for that rank. heartbeat[source], written by a waiting source,
/// extends its deadline.
#pragma once

#include <algorithm>

#include "device/apart.hpp"
#include "device/cold.hpp"
#include "device/device.hpp"
#include "device/guarded_wait.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"
#include "expert_parallel/low_latency/kernels/liveness_timeout.hpp"

namespace tokenyard::low_latency {

TOKENYARD_DEVICE uint32_t failure_of(const CallParams& params, uint32_t rank) {
  // Relaxed: the word says only that the rank is masked and orders no other data.
  return load<Order::relaxed, Scope::gpu>(params.masks.failed + rank);
}
TOKENYARD_DEVICE bool is_masked(const CallParams& params, uint32_t rank) {
  return failure_of(params, rank) != static_cast<uint32_t>(Failure::none);
}

/// Low bits of the failure word of a rank whose row format differs from this one's; the others hold
/// the call in which that began.
inline constexpr uint32_t kDiffers = 7;
static_assert(kDiffers > static_cast<uint32_t>(Failure::network));
TOKENYARD_DEVICE uint32_t differs_since(Kind kind, uint32_t epoch) {
  return kDiffers | static_cast<uint32_t>(kind) << 3 | epoch << 4;
}

// Heartbeats are relaxed throughout: they order no other data.

/// Reads a rank's heartbeat and returns when it last changed. Reads the clock itself: a time taken
/// by the caller before it waited would date the heartbeat too early.
TOKENYARD_DEVICE uint32_t read_heartbeat(const CallParams& params, uint32_t rank) {
  Workspace::Heard* const heard = params.workspace->heard(rank);
  const uint32_t heartbeat =
      load<Order::relaxed, Scope::sys>(params.windows.heartbeat(params.rank, rank));
  const Workspace::Heard last = load<Order::relaxed, Scope::gpu>(heard);
  if (heartbeat == last.heartbeat) return last.at;
  const auto now = static_cast<uint32_t>(now_ns() / kTimeUnitNs);
  store<Order::relaxed, Scope::gpu>(heard, {.heartbeat = heartbeat, .at = now});
  return now;
}

/// Sends this rank's heartbeat and reads the others'. Many threads wait at once; one of them per
/// interval suffices, whichever rank it waits for and however short the timeout. Needless stores
/// would delay other stores.
TOKENYARD_DEVICE void exchange_heartbeats(const CallParams& params, uint32_t clock) {
  uint32_t* const heartbeat = &params.workspace->heartbeat;
  const uint32_t last = load<Order::relaxed, Scope::gpu>(heartbeat);
  const uint32_t apart = std::max(1u, params.timeout / (2 * kHeartbeats));
  // Less than `apart` before or after: this thread's clock reading may be old.
  if (clock - last + apart - 1 < 2 * apart - 1) return;
  if (compare_exchange<Order::relaxed, Scope::gpu>(heartbeat, last, clock) != last) return;
  TOKENYARD_KEEP_ROLLED for (uint32_t rank = 0; rank < params.ranks; ++rank) {
    if (rank == params.rank || params.leaves_out(rank) || is_masked(params, rank)) continue;
    store<Order::relaxed, Scope::sys>(params.windows.heartbeat(rank, params.rank), clock);
    read_heartbeat(params, rank);
  }
}

/// Returns when a wait for `rank` that began with the call times out, in kTimeUnitNs since then.
/// Reads the heartbeat itself: other threads may have read it before its first change.
TOKENYARD_DEVICE uint32_t end_of_wait(const CallParams& params, uint32_t rank, uint32_t now,
                                      uint32_t clock) {
  return end_of_wait(read_heartbeat(params, rank), now, clock, params.timeout);
}

/// Rank awaited by a lane that has all its data.
inline constexpr uint32_t kNobody = UINT32_MAX;

/// Result of poll_watchdog for a wait that is over.
inline constexpr uint32_t kGivenUp = UINT32_MAX;
/// Its result for a rank that has left, and may have stored the awaited data before: the next poll
/// is the last.
TOKENYARD_DEVICE constexpr uint32_t last_look_at(uint32_t rank) {
  return kGivenUp - 1 - rank;
}

/// Checks on a wait that has lasted for a while. `next_poll` is the previous result, at first 0.
/// Returns when to check again, in kTimeUnitNs since the start; last_look_at(rank); or kGivenUp if
/// the rank is masked, by this call or earlier, unless its failure word equals `tolerated`.
TOKENYARD_COLD uint32_t poll_watchdog(const CallParams& call_params, uint64_t start_ns,
                                      uint32_t phase, uint32_t rank, uint32_t expected,
                                      uint32_t seen, uint32_t next_poll, uint32_t tolerated) {
  // Settled, so that the compiler computes nothing for this function before the wait.
  const CallParams& params = *settled(&call_params);
  const uint32_t failure = failure_of(params, rank);
  if (failure != static_cast<uint32_t>(Failure::none) && failure != tolerated) return kGivenUp;
  const uint64_t time_ns = now_ns();
  const auto now = static_cast<uint32_t>((time_ns - start_ns) / kTimeUnitNs);
  const bool last = next_poll >= last_look_at(params.ranks);
  if (now < next_poll && !last) return next_poll;
  const uint32_t interval = std::clamp(params.timeout / kHeartbeats, 1u, uint32_t{kLookUnitsMax});
  if (next_poll == 0) return now + interval;
  const WaitContext wait_context = params.masks.wait_context(rank);
  const Deadline deadline(wait_context, start_ns);
  const Awaited what{.phase = phase, .rank = rank, .expected = expected, .seen = seen};
  // Acquire: orders what the rank stored before it left before the last poll.
  if (const AbortWord abort_flag = load<Order::acquire, Scope::sys>(wait_context.abort_flag);
      abort_flag != kNoAbort) {
    if (abort_flag == kLeft && next_poll != last_look_at(rank)) return last_look_at(rank);
    deadline.fail(abort_flag == kLeft ? Failure::left : Failure::abort_flag, what);
    return kGivenUp;
  }
  const auto clock = static_cast<uint32_t>(time_ns / kTimeUnitNs);
  exchange_heartbeats(params, clock);
  // A wait for this rank itself has no timeout. Before its blocks send the awaited data, they wait
  // for other ranks no longer than those ranks' timeouts, so the data arrives. Nor may this rank be
  // masked: its blocks rely on one another's verdicts about it, and `lost` counts none of its own
  // experts. The abort flag ends these waits too.
  if (now < end_of_wait(params, rank, now, clock) || rank == params.rank) return now + interval;
  deadline.fail(Failure::deadline, what);
  return kGivenUp;
}

/// A difference between what a rank has sent and what is awaited.
struct Difference {
  bool found = false;
  Phase phase = Phase::left_out;
  uint32_t expected = 0, seen = 0;  ///< formats
};

/// When a waiting thread next checks its wait.
struct Watchdog {
  uint32_t polls_left, next_poll = 0;

  TOKENYARD_DEVICE explicit Watchdog(const CallParams& params)
      : polls_left(params.polls_per_check) {}
  /// Returns true once per polls_per_check unsuccessful polls.
  TOKENYARD_DEVICE bool is_due(const CallParams& params) {
    if (--polls_left != 0) [[likely]]
      return false;
    polls_left = params.polls_per_check;
    return true;
  }
};

/// A call as one thread sees it.
struct Call {
  const CallParams& params;
  uint32_t* open_ranks;  ///< [ranks] in shared memory: whether this block communicates with each
  Kind kind;
  Progress before;  ///< epochs of this kind before this call
  uint64_t start_ns;

  /// Computed where it is needed, which is later than the load of `before`.
  TOKENYARD_DEVICE uint32_t epoch() const {
    return (sends(params.part) ? before.sent : before.received) + 1;
  }
  TOKENYARD_DEVICE uint32_t parity() const { return parity_of(epoch()); }
  TOKENYARD_DEVICE bool open(uint32_t rank) const { return open_ranks[rank] != 0; }

  /// Returns the failure word of a rank masked in this call for a difference. This call still sends
  /// to it, so that it detects the difference too.
  TOKENYARD_DEVICE uint32_t differs_since_now() const { return differs_since(kind, epoch()); }

  /// Waits for data of `rank` until `condition(seen)` holds. Returns false if the rank is masked,
  /// by this call or earlier.
  template <class Condition>
  TOKENYARD_DEVICE bool await(Phase phase, uint32_t rank, uint32_t expected,
                              Condition condition) const {
    return await(phase, rank, expected, condition, [](uint64_t) { return Difference{}; });
  }
  /// The same, if what `condition` has seen may show that the rank differs from this one.
  template <class Condition, class FindDifference>
  TOKENYARD_DEVICE bool await(Phase phase, uint32_t rank, uint32_t expected, Condition condition,
                              FindDifference difference) const {
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = expected};
    Watchdog watchdog(params);
    return wait_until(
        what, [&] { return condition(what.seen); },
        [&] {
          return goes_on(watchdog, phase, rank, expected, static_cast<uint32_t>(what.seen),
                         [&] { return difference(what.seen); });
        });
  }

  /// Waits for several ranks at once: waiting one by one would load the second rank's data only
  /// after the first's, and each load takes a memory latency. `awaited()` reloads all that is
  /// missing and returns a rank that is still awaited, or kNobody; `difference()` returns how that
  /// rank's data differs, if it does; `lose(rank)` is called when a rank is masked, by this call or
  /// earlier, and must stop awaiting it.
  template <class WhoIsAwaited, class FindDifference, class Lose>
  TOKENYARD_DEVICE void await_ranks(Phase phase, uint32_t expected, WhoIsAwaited awaited,
                                    FindDifference difference, Lose lose) const {
    Awaited what{.phase = static_cast<uint32_t>(phase), .expected = expected};
    Watchdog watchdog(params);
    uint32_t rank = kNobody;
    wait_until(
        what,
        [&] {
          rank = awaited();
          return rank == kNobody;
        },
        [&] {
          if (!goes_on(watchdog, phase, rank, expected, 0, difference)) {
            lose(rank);
            watchdog = Watchdog(params);
          }
          return true;
        });
  }

 private:
  /// Called after each unsuccessful poll. Returns false if the rank is masked, by this call or
  /// earlier. Calls `difference()` now and then, and masks a rank for which it finds one.
  template <class FindDifference>
  TOKENYARD_DEVICE bool goes_on(Watchdog& watchdog, Phase phase, uint32_t rank, uint32_t expected,
                                uint32_t seen, FindDifference difference) const {
    if (!watchdog.is_due(params)) [[likely]]
      return true;
    const uint32_t before = watchdog.next_poll;
    watchdog.next_poll =
        poll_watchdog(params, start_ns, static_cast<uint32_t>(phase), rank, expected, seen, before,
                      is_to_send(phase) ? differs_since_now() : 0);
    if (watchdog.next_poll == before || watchdog.next_poll == kGivenUp)
      return watchdog.next_poll != kGivenUp;
    const Difference found = difference();
    if (found.found) refuse(rank, found);
    return !found.found;
  }
  TOKENYARD_DEVICE void refuse(uint32_t rank, const Difference& found) const {
    const WaitContext wait_context = params.masks.wait_context(rank);
    Deadline(wait_context, start_ns)
        .fail(static_cast<Failure>(differs_since_now()),
              Awaited{.phase = static_cast<uint32_t>(found.phase),
                      .rank = rank,
                      .expected = found.expected,
                      .seen = found.seen});
  }
};

}  // namespace tokenyard::low_latency
