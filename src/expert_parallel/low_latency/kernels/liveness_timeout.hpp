/// How long a rank is waited for that shows signs of life.
#pragma once

#include <algorithm>
#include <cstdint>

#include "expert_parallel/low_latency/kernels/protocol.hpp"

namespace tokenyard::low_latency {

/// When a wait ends that began with the call, `now` ago: a rank that was heard has its time anew,
/// within limits. `clock` is the time of day when the waiting thread looked at it, `heard_at` that
/// of the last pulse; 32 bits of it, so that differences count alone. All in kTimeUnitNs.
HOST_DEVICE uint32_t end_of_wait(uint32_t heard_at, uint32_t now, uint32_t clock,
                                 uint32_t timeout) {
  // Another thread may have heard the rank after this one looked at the clock.
  const bool just_now = heard_at - clock <= now;
  const uint32_t heard_before = just_now ? 0 : clock - heard_at;
  if (heard_before > now) return timeout;
  return std::min(now - heard_before + timeout, kTimesLate * timeout);
}

}  // namespace tokenyard::low_latency
