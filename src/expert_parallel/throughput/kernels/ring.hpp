/// A ring of stages in shared memory through which rows pass, and a place in it.
#pragma once

#include "device/device.hpp"

namespace tokenyard::throughput {

/// Stages are held one a lane where they must be remembered.
inline constexpr uint32_t kStagesMax = kWarpLanes;

/// How rows are cut to fit shared memory. A row moves in `segments`, all of segment_bytes but the
/// last.
struct StagePlan {
  uint32_t stages;         ///< 1 .. kStagesMax
  uint32_t stage_bytes;    ///< distance between stages: segment_bytes, rounded up to 128
  uint32_t segment_bytes;  ///< a multiple of 16
  uint32_t segments;
  uint32_t lag;  ///< stages whose stores may still be reading; below `stages`

  HOST_DEVICE uint32_t bytes_of(uint32_t segment, uint32_t row_bytes) const {
    return segment + 1 < segments ? segment_bytes : row_bytes - segment * segment_bytes;
  }
};

/// A stage, and how often the ring has come round: the parity of that lap is the parity of the
/// stage's Completion.
struct RingPosition {
  uint32_t stage = 0, lap = 0;

  /// `steps` is at most `stages`.
  DEVICE void advance(uint32_t steps, uint32_t stages) {
    stage += steps;
    if (stage < stages) return;
    stage -= stages;
    ++lap;
  }
  DEVICE uint32_t parity() const { return lap & 1; }
};

/// By all lanes: whether the last use of each of so many stages from `at` on has ended, as
/// `ended(stage, lap)` says; on the first lap stages have never been used. They wait for one after
/// the other, which takes no longer than the last, and all of them know of each: compute-sanitizer
/// follows no others.
template <class Ended>
DEVICE bool await_free(RingPosition at, uint32_t wanted, uint32_t stages, Ended ended) {
  for (; wanted != 0; --wanted, at.advance(1, stages))
    if (at.lap > 0 && !warp::all(ended(at.stage, at.lap - 1))) return false;
  return true;
}

/// A block may not end while copies into its shared memory are under way, a failed one neither:
/// they would land in the memory of whichever block comes next. For each use of a stage before
/// `end` a load has been started, or there was an arrival without one, so all end by themselves,
/// whatever peers do. As with bulk::wait there is no deadline: that time has passed does not say
/// that a load has landed. Naps are short, since a block that has not failed comes through here
/// too, and oversleeping would be counted in its time.
DEVICE void let_loads_land(Completion* full, RingPosition end, uint32_t stages) {
  constexpr uint32_t kNapNs = 500;
  for (uint32_t stage = 0; stage < stages; ++stage) {
    if (stage >= end.stage && end.lap == 0) continue;  // Never used.
    const uint32_t lap = stage < end.stage ? end.lap : end.lap - 1;
    while (!full[stage].done(lap & 1)) nap(kNapNs);
  }
}

}  // namespace tokenyard::throughput
