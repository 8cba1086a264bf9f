/// Alignment of the ranks' clocks, by the order of events.
///
/// Each rank records times by its own clock, and the offsets between clocks are unknown. But a task
/// that awaits another task's signal began after that task did, whatever the clocks say:
///
///     rank a  ....[ signals      ].........        begun(a) + shift(a) <= begun(b) + shift(b)
///                   \                              where shift(r) is what must be added to the
///     rank b  .......-->[ awaits   ].......        readings of r
///
/// The begin of the signalling task counts and not its end, since a signal may leave before its
/// worker has recorded the end. For an event carried by data, the end of the awaiting task counts,
/// since its body awaits. A dynamic signal gives no bound: it may never have been sent.
///
/// So every signal between ranks is a bound on the difference of two shifts,
///
///     shift(a) - shift(b) <= begun(b) - begun(a),
///
/// and the tightest bound per pair and direction is kept. Bounds add up along paths: with paths
/// through other ranks included (Floyd-Warshall), each pair has the tightest bound that all signals
/// together allow. Then ranks are placed one after another, each by its bounds to those already
/// placed: in the middle if there are bounds of both directions, at the bound if signals go one way
/// only. A rank without bounds begins its first task when the reference does. The best-bounded
/// ranks are placed first.
///
/// Drifting clocks or wrong readings give contradictory bounds: the middle is used all the same,
/// and the result says by how much they contradict.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

/// How the shift of a clock was determined.
enum class ClockSource : uint8_t {
  reference,   ///< not shifted: the others are shifted to it
  both_sides,  ///< middle of the bounds of both directions
  one_side,    ///< bound of the only direction with signals
  first_task   ///< no signals: its first task begins when the reference's does
};

struct ClockShift {
  uint32_t rank = 0;
  ClockSource source = ClockSource::reference;
  int64_t shift_ns = 0;  ///< added to its readings, gives the reference's
  /// Bounds of shift_ns from signals, also through other ranks.
  std::optional<int64_t> at_least_ns = std::nullopt, at_most_ns = std::nullopt;
  uint64_t contradiction_ns = 0;  ///< largest contradiction between bounds of this rank
};

/// Returns one shift per trace, in their order. The reference is the lowest rank that ran a task.
/// Throws InvalidArgument if two traces belong to one rank.
std::vector<ClockShift> align_clocks(std::span<const Trace> traces);

}  // namespace tokenyard::megakernel
