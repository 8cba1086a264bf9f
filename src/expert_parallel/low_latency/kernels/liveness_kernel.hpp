/// How a low-latency call waits for a rank, and shows meanwhile that it is alive.
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

DEVICE uint32_t failure_of(const CallParams& params, uint32_t rank) {
  // Relaxed: the word says only that the rank is masked, and nothing else is read on its strength.
  return load<Order::relaxed, Scope::gpu>(params.masks.failed + rank);
}
DEVICE bool is_masked(const CallParams& params, uint32_t rank) {
  return failure_of(params, rank) != static_cast<uint32_t>(Failure::none);
}

/// The failure word of a rank that differs from this one, and since which call.
inline constexpr uint32_t kDiffers = 7;
static_assert(kDiffers > static_cast<uint32_t>(Failure::left));
DEVICE uint32_t differs_since(Kind kind, uint32_t epoch) {
  return kDiffers | static_cast<uint32_t>(kind) << 3 | epoch << 4;
}

// Relaxed, all of a pulse's way: nothing else is read on its strength.

/// Listens for a rank, and says when it was heard last. Looks at the clock itself: who has waited
/// since it did so would date what it hears too early.
DEVICE uint32_t read_heartbeat(const CallParams& params, uint32_t rank) {
  Workspace::Heard* const heard = &params.workspace->heard[rank];
  const uint32_t heartbeat =
      load<Order::relaxed, Scope::sys>(params.windows.heartbeat(params.rank, rank));
  const Workspace::Heard last = load<Order::relaxed, Scope::gpu>(heard);
  if (heartbeat == last.heartbeat) return last.at;
  const auto now = static_cast<uint32_t>(now_ns() / kTimeUnitNs);
  store<Order::relaxed, Scope::gpu>(heard, {.heartbeat = heartbeat, .at = now});
  return now;
}

/// Tells the others that this rank waits, and listens for them. Many threads wait at once: one that
/// does so in a while is enough, whomever it waits for itself, and however short the timeout.
/// Stores that nobody needs keep others from theirs.
DEVICE void exchange_heartbeats(const CallParams& params, uint32_t clock) {
  uint32_t* const heartbeat = &params.workspace->heartbeat;
  const uint32_t last = load<Order::relaxed, Scope::gpu>(heartbeat);
  const uint32_t apart = std::max(1u, params.timeout / (2 * kHeartbeats));
  // By less, before or after: this thread may have looked at the clock long ago.
  if (clock - last + apart - 1 < 2 * apart - 1) return;
  if (compare_exchange<Order::relaxed, Scope::gpu>(heartbeat, last, clock) != last) return;
  KEEP_ROLLED for (uint32_t rank = 0; rank < params.ranks; ++rank) {
    if (rank == params.rank || !params.active.contains(rank) || is_masked(params, rank)) continue;
    store<Order::relaxed, Scope::sys>(params.windows.heartbeat(rank, params.rank), clock);
    read_heartbeat(params, rank);
  }
}

/// When a wait for `rank` that began with the call ends, in kTimeUnitNs since then. Listens itself:
/// others may have done so last before its first pulse.
DEVICE uint32_t end_of_wait(const CallParams& params, uint32_t rank, uint32_t now, uint32_t clock) {
  return end_of_wait(read_heartbeat(params, rank), now, clock, params.timeout);
}

/// Who is awaited by a lane that has everything.
inline constexpr uint32_t kNobody = UINT32_MAX;

/// The verdict of poll_watchdog on a wait that is over.
inline constexpr uint32_t kGivenUp = UINT32_MAX;
/// What it says of a wait for a rank that has said goodbye, and may have stored what is awaited
/// before: the next look is the last.
DEVICE constexpr uint32_t last_look_at(uint32_t rank) {
  return kGivenUp - 1 - rank;
}

/// By a thread that has waited for a while; `next_poll` is what this said last, at first 0. When
/// to look again, in kTimeUnitNs since the start, or last_look_at(rank), or kGivenUp: the rank is
/// masked, now or before, unless for what is `tolerated`.
COLD uint32_t poll_watchdog(const CallParams& call_params, uint64_t start_ns, uint32_t phase,
                            uint32_t rank, uint32_t expected, uint32_t seen, uint32_t next_poll,
                            uint32_t tolerated) {
  // Settled, so that nothing of what is only needed here is worked out before the wait.
  const CallParams& params = *settled(&call_params);
  const uint32_t failure = failure_of(params, rank);
  if (failure != static_cast<uint32_t>(Failure::none) && failure != tolerated) return kGivenUp;
  const uint64_t time_ns = now_ns();
  const auto now = static_cast<uint32_t>((time_ns - start_ns) / kTimeUnitNs);
  const bool last = next_poll >= last_look_at(kRanksMax);
  if (now < next_poll && !last) return next_poll;
  const uint32_t interval = std::clamp(params.timeout / kHeartbeats, 1u, uint32_t{kLookUnitsMax});
  if (next_poll == 0) return now + interval;
  const WaitContext wait_context = params.masks.wait_context(rank);
  const Deadline deadline(wait_context, start_ns);
  const Awaited what{.phase = phase, .rank = rank, .expected = expected, .seen = seen};
  // Acquire: the last look finds what the rank stored before it said goodbye.
  if (const AbortWord abort_flag = load<Order::acquire, Scope::sys>(wait_context.abort_flag);
      abort_flag != kNoAbort) {
    if (abort_flag == kLeft && next_poll != last_look_at(rank)) return last_look_at(rank);
    deadline.fail(abort_flag == kLeft ? Failure::left : Failure::abort_flag, what);
    return kGivenUp;
  }
  const auto clock = static_cast<uint32_t>(time_ns / kTimeUnitNs);
  exchange_heartbeats(params, clock);
  // What a rank sends to itself waits for others at most as long as they are waited for, so it
  // comes. Nor could its rank be masked: the rank's blocks take one another's verdicts in its name,
  // and `lost` counts none of its own experts. The alarm ends these waits as well.
  if (now < end_of_wait(params, rank, now, clock) || rank == params.rank) return now + interval;
  deadline.fail(Failure::deadline, what);
  return kGivenUp;
}

/// How what a rank has sent differs from what is awaited, if it does.
struct Difference {
  bool found = false;
  Phase phase = Phase::left_out;
  uint32_t expected = 0, seen = 0;  ///< formats
};

/// Of a thread that waits: when it looks around.
struct Watchdog {
  uint32_t polls_left, next_poll = 0;

  DEVICE explicit Watchdog(const CallParams& params) : polls_left(params.polls_per_check) {}
  /// After each poll in vain: once in so many of them.
  DEVICE bool is_due(const CallParams& params) {
    if (--polls_left != 0) [[likely]]
      return false;
    polls_left = params.polls_per_check;
    return true;
  }
};

/// In the block's shared memory.
struct CallShared {
  uint32_t open[kRanksMax];  ///< ranks that this block speaks with
};

/// A call as one thread sees it.
struct Call {
  const CallParams& params;
  CallShared& shared;
  Kind kind;
  Progress before;  ///< of this kind, of the calls until now
  uint64_t start_ns;

  /// Worked out where it is asked for, which is later than `before` is asked for.
  DEVICE uint32_t epoch() const { return (sends(params.part) ? before.sent : before.received) + 1; }
  DEVICE uint32_t parity() const { return parity_of(epoch()); }
  DEVICE bool open(uint32_t rank) const { return shared.open[rank] != 0; }

  /// The failure word of a rank that is masked since this call for a difference. It is to find out
  /// as well, so what this call sends it is sent all the same.
  DEVICE uint32_t differs_since_now() const { return differs_since(kind, epoch()); }

  /// Waits for something of `rank`'s; `condition(seen)` says whether it is there. False: the rank
  /// is masked, now or before.
  template <class Condition>
  DEVICE bool await(Phase phase, uint32_t rank, uint32_t expected, Condition condition) const {
    return await(phase, rank, expected, condition, [](uint64_t) { return Difference{}; });
  }
  /// The same where what `condition` has seen may show that the rank differs from this one.
  template <class Condition, class FindDifference>
  DEVICE bool await(Phase phase, uint32_t rank, uint32_t expected, Condition condition,
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

  /// Waits for several ranks at once: who waits for one after the other looks for the second only
  /// when the first has come, and each look takes as long as memory does. `awaited()` looks again,
  /// for all that is missing, and says of a rank that is still waited for, or kNobody;
  /// `difference()`: what that rank has sent, if it is not what is awaited; `lose(rank)`: it is
  /// masked, now or before, and is to be waited for no more.
  template <class WhoIsAwaited, class FindDifference, class Lose>
  DEVICE void await_ranks(Phase phase, uint32_t expected, WhoIsAwaited awaited,
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
  /// After each poll in vain. False: the rank is masked, now or before. `difference()` is asked
  /// now and then; a rank of which there is one is masked for it.
  template <class FindDifference>
  DEVICE bool goes_on(Watchdog& watchdog, Phase phase, uint32_t rank, uint32_t expected,
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
  DEVICE void refuse(uint32_t rank, const Difference& found) const {
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
