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
    uint32_t next_look = params.timeout / kPulses;
    bool arrived = false;
    uint32_t polls = 0;
    const bool ended = wait_until(deadline, what, [&] {
      arrived = condition(what.seen);
      return arrived || (++polls % params.polls_a_look == 0 && !goes_on(next_look, rank));
    });
    if (ended && !arrived) deadline.fail(Failure::deadline, what);
    return arrived;
  }

 private:
  /// Whether there is still time, which is counted in kTimeUnitNs since the start. `next_look`:
  /// when to ask again. A rank that was heard has its time anew, within limits.
  DEVICE bool goes_on(uint32_t& next_look, uint32_t rank) const {
    const uint64_t time_ns = now_ns();
    const auto now = static_cast<uint32_t>((time_ns - start_ns) / kTimeUnitNs);
    if (now < next_look) return true;
    next_look = now + std::max(params.timeout / kPulses, 1u);
    const auto clock = static_cast<uint32_t>(time_ns / kTimeUnitNs);
    exchange_pulses(clock);
    // Relaxed, like all pulses: nothing else is read on their strength.
    const uint32_t heard_before =
        clock - load<Order::relaxed, Scope::gpu>(&params.workspace->heard[rank].at);
    uint32_t end = params.timeout;
    if (heard_before <= now)
      end = std::min(now - heard_before + params.timeout, kTimesLate * params.timeout);
    // This rank waits for nobody else when it sends to itself, and is never masked.
    return now < end || rank == params.rank;
  }

  /// Tells the others that this rank waits, and notes whom it hears. Many threads wait at once: one
  /// that does so in a while is enough, whomever it waits for itself.
  DEVICE void exchange_pulses(uint32_t clock) const {
    Workspace& workspace = *params.workspace;
    const uint32_t last = load<Order::relaxed, Scope::gpu>(&workspace.pulse);
    if (clock - last < params.timeout / (2 * kPulses)) return;
    store<Order::relaxed, Scope::gpu>(&workspace.pulse, clock);
    for (uint32_t rank = 0; rank < params.ranks; ++rank) {
      if (rank == params.rank || !params.active.contains(rank) || masked(rank)) continue;
      store<Order::relaxed, Scope::sys>(params.windows.pulse(rank, params.rank), clock);
      const uint32_t pulse =
          load<Order::relaxed, Scope::sys>(params.windows.pulse(params.rank, rank));
      Workspace::Heard& heard = workspace.heard[rank];
      if (pulse == load<Order::relaxed, Scope::gpu>(&heard.pulse)) continue;
      store<Order::relaxed, Scope::gpu>(&heard.pulse, pulse);
      store<Order::relaxed, Scope::gpu>(&heard.at, clock);
    }
  }
};

}  // namespace tokenyard::low_latency
