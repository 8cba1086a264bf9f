/// How a low-latency call waits for a rank, and shows meanwhile that it is alive.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "expert_parallel/low_latency/call.hpp"

namespace tokenyard::low_latency {

/// In the block's shared memory.
struct CallShared {
  uint32_t open[kRanksMax];  ///< ranks that this block speaks with
};

/// What a thread knows of a wait that has lasted.
struct Vigil {
  uint64_t next_look_ns;  ///< when to send a pulse and to look for the awaited rank's
  uint64_t end_ns;        ///< when the rank is given up
  uint32_t pulse = 0;     ///< of the awaited rank, as seen last
  bool looked = false;
};

/// A call as one thread sees it.
struct Call {
  const CallParams& params;
  CallShared& shared;
  Kind kind;
  uint32_t epoch;
  uint64_t start_ns;

  DEVICE uint32_t parity() const { return parity_of(epoch); }
  DEVICE bool open(uint32_t rank) const { return shared.open[rank] != 0; }

  DEVICE bool masked(uint32_t rank) const {
    // Relaxed: the word says only that the rank is masked, and nothing else is read on its
    // strength.
    return load<Order::relaxed, Scope::gpu>(params.masks.failed + rank) !=
           static_cast<uint32_t>(Failure::none);
  }

  /// Waits for something of `rank`'s; `condition(seen)` says whether it is there. False: the rank
  /// is masked, now or before.
  template <class Condition>
  DEVICE bool await(Phase phase, uint32_t rank, uint64_t expected, Condition condition) const {
    const Patience patience = params.masks.patience(rank);
    const Deadline deadline(patience, start_ns);
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = expected};
    Vigil vigil{.next_look_ns = start_ns + params.timeout_ns / kPulses,
                .end_ns = start_ns + params.timeout_ns};
    bool arrived = false;
    uint32_t polls = 0;
    const bool ended = wait_until(deadline, what, [&] {
      arrived = condition(what.seen);
      return arrived || (++polls % params.polls_a_look == 0 && !goes_on(vigil, rank));
    });
    if (ended && !arrived) deadline.fail(Failure::deadline, what);
    return arrived;
  }

 private:
  /// Whether there is still time. A rank whose pulse changes gets its time anew, within limits.
  DEVICE bool goes_on(Vigil& vigil, uint32_t rank) const {
    const uint64_t now = now_ns();
    if (now < vigil.next_look_ns) return true;
    vigil.next_look_ns = now + params.timeout_ns / kPulses;
    send_pulses(now);
    // Relaxed, like all pulses: nothing else is read on their strength.
    const uint32_t pulse =
        load<Order::relaxed, Scope::sys>(params.windows.pulse(params.rank, rank));
    if (vigil.looked && pulse != vigil.pulse)
      vigil.end_ns = std::min(now + params.timeout_ns, start_ns + kTimesLate * params.timeout_ns);
    vigil.pulse = pulse;
    vigil.looked = true;
    return now < vigil.end_ns;
  }

  /// Many threads wait at once: one pulse in a while is enough.
  DEVICE void send_pulses(uint64_t now) const {
    constexpr uint32_t kUnitNs = 64;  // So that 32 bits come round after minutes only.
    const auto pulse = static_cast<uint32_t>(now / kUnitNs);
    uint32_t* const last = &params.workspace->pulse;
    const uint32_t since = pulse - load<Order::relaxed, Scope::gpu>(last);
    if (uint64_t{since} * kUnitNs < params.timeout_ns / (2 * kPulses)) return;
    store<Order::relaxed, Scope::gpu>(last, pulse);
    for (uint32_t rank = 0; rank < params.ranks; ++rank)
      if (rank != params.rank && params.active.contains(rank) && !masked(rank))
        store<Order::relaxed, Scope::sys>(params.windows.pulse(rank, params.rank), pulse);
  }
};

}  // namespace tokenyard::low_latency
