/// How long to wait for a rank that shows signs of life.
#pragma once

#include <algorithm>
#include <cstdint>

#include "expert_parallel/low_latency/kernels/protocol.hpp"

namespace tokenyard::low_latency {

/// Returns when a wait times out that began with the call, `now` ago: each heartbeat restarts the
/// timeout, within limits. `clock` is the waiting thread's last clock reading, `heard_at` the time
/// of the last heartbeat, both modulo 2^32, so that only differences count. All in kTimeUnitNs.
TOKENYARD_HOST_DEVICE uint32_t end_of_wait(uint32_t heard_at, uint32_t now, uint32_t clock,
                                           uint32_t timeout) {
  // Another thread may have read the heartbeat after this one read the clock.
  const bool just_now = heard_at - clock <= now;
  const uint32_t heard_before = just_now ? 0 : clock - heard_at;
  if (heard_before > now) return timeout;
  return std::min(now - heard_before + timeout, kTimesLate * timeout);
}

}  // namespace tokenyard::low_latency
