/// Counts of a control plane since its process founded or joined the job.
#pragma once

#include <cstdint>

namespace tokenyard::control {

struct ControlCounters {
  uint64_t epochs = 0;           ///< views that this process has had, the first one included
  uint64_t joined = 0;           ///< members that have come, founders included
  uint64_t lost = 0;             ///< members that died, fell silent or were evicted
  uint64_t left = 0;             ///< members that left in good order
  uint64_t excused = 0;          ///< requests to evict a member that stayed (Verdict::excused)
  uint64_t stalls = 0;           ///< times that a member was found to be slow (Verdict::stalled)
  uint64_t heartbeats_late = 0;  ///< heartbeats that came after more than half of a silence
  uint64_t quorums_missed = 0;   ///< times that too few members answered to agree on anything
  uint64_t links_made = 0;       ///< connections to other ranks
  uint64_t links_lost = 0;       ///< those of them that ended without a goodbye
  uint64_t links_refused = 0;    ///< connections rejected, and messages that could not be decoded
};

}  // namespace tokenyard::control
