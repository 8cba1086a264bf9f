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

/// What a thread knows of a wait that has lasted, in few registers: times in kTimeUnitNs since
/// the start.
struct Vigil {
  uint32_t next_look;  ///< when to send a pulse and to look for the awaited rank's
  uint32_t end;        ///< when the rank is given up
  uint32_t pulse;      ///< of the awaited rank, as seen last
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
    Vigil vigil{.next_look = timeout() / kPulses, .end = timeout(), .pulse = 0};
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
  DEVICE uint32_t timeout() const { return params.timeout; }

  /// Whether there is still time. A rank whose pulse changes gets its time anew, within limits.
  DEVICE bool goes_on(Vigil& vigil, uint32_t rank) const {
    const auto now = static_cast<uint32_t>((now_ns() - start_ns) / kTimeUnitNs);
    if (now < vigil.next_look) return true;
    const bool first = vigil.next_look == timeout() / kPulses;
    vigil.next_look = now + std::max(timeout() / kPulses, 1u);
    send_pulses();
    // Relaxed, like all pulses: nothing else is read on their strength.
    const uint32_t pulse =
        load<Order::relaxed, Scope::sys>(params.windows.pulse(params.rank, rank));
    if (!first && pulse != vigil.pulse)
      vigil.end = std::min(now + timeout(), kTimesLate * timeout());
    vigil.pulse = pulse;
    // This rank waits for nobody else when it sends to itself, and is never masked.
    return now < vigil.end || rank == params.rank;
  }

  /// Many threads wait at once: one pulse in a while is enough.
  DEVICE void send_pulses() const {
    const auto pulse = static_cast<uint32_t>(now_ns() / kTimeUnitNs);
    uint32_t* const last = &params.workspace->pulse;
    if (pulse - load<Order::relaxed, Scope::gpu>(last) < timeout() / (2 * kPulses)) return;
    store<Order::relaxed, Scope::gpu>(last, pulse);
    for (uint32_t rank = 0; rank < params.ranks; ++rank)
      if (rank != params.rank && params.active.contains(rank) && !masked(rank))
        store<Order::relaxed, Scope::sys>(params.windows.pulse(rank, params.rank), pulse);
  }
};

}  // namespace tokenyard::low_latency
