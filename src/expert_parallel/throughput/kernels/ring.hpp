/// A ring of stages in shared memory through which rows pass, and a position in it.
#pragma once

#include "device/device.hpp"

namespace tokenyard::throughput {

/// At most one stage per lane, because lanes hold per-stage state.
inline constexpr uint32_t kStagesMax = kWarpLanes;

/// Division of rows into stages of shared memory. A row moves in `segments` pieces of
/// segment_bytes; the last may be shorter.
struct StagePlan {
  uint32_t stages;         ///< 1 .. kStagesMax
  uint32_t stage_bytes;    ///< distance between stages: segment_bytes rounded up to 128
  uint32_t segment_bytes;  ///< a multiple of 16
  uint32_t segments;
  uint32_t lag;  ///< newest stored stages whose stores may still read them; below `stages`

  TOKENYARD_HOST_DEVICE uint32_t bytes_of(uint32_t segment, uint32_t row_bytes) const {
    return segment + 1 < segments ? segment_bytes : row_bytes - segment * segment_bytes;
  }
};

/// A stage and its lap around the ring. The parity of the lap is the parity of the stage's
/// Completion.
struct RingPosition {
  uint32_t stage = 0, lap = 0;

  /// Requires `steps` <= `stages`.
  TOKENYARD_DEVICE void advance(uint32_t steps, uint32_t stages) {
    stage += steps;
    if (stage < stages) return;
    stage -= stages;
    ++lap;
  }
  TOKENYARD_DEVICE uint32_t parity() const { return lap & 1; }
};

/// Waits until the last use of each of `wanted` stages from `at` on has ended, as `ended(stage,
/// lap)` reports; stages of the first lap have no earlier use. Called by all lanes. They wait for
/// one stage after another, which takes no longer than the last one alone, and each lane observes
/// every stage: compute-sanitizer follows only what each lane has observed.
template <class Ended>
TOKENYARD_DEVICE bool await_free(RingPosition at, uint32_t wanted, uint32_t stages, Ended ended) {
  for (; wanted != 0; --wanted, at.advance(1, stages))
    if (at.lap > 0 && !warp::all(ended(at.stage, at.lap - 1))) return false;
  return true;
}

/// Waits until all loads into the ring have landed. A block, even a failed one, must not end while
/// copies into its shared memory are in flight: they would land in the next block's memory. Every
/// stage used before `end` has a load in flight or an arrival without one, so this ends without
/// peers. It has no deadline, as bulk::wait has none: elapsed time does not prove that a load has
/// landed. Naps are short because blocks that have not failed pass through here too, and
/// oversleeping would add to their time.
TOKENYARD_DEVICE void let_loads_land(Completion* full, RingPosition end, uint32_t stages) {
  constexpr uint32_t kNapNs = 500;
  for (uint32_t stage = 0; stage < stages; ++stage) {
    if (stage >= end.stage && end.lap == 0) continue;  // Unused.
    const uint32_t lap = stage < end.stage ? end.lap : end.lap - 1;
    while (!full[stage].done(lap & 1)) nap(kNapNs);
  }
}

}  // namespace tokenyard::throughput
