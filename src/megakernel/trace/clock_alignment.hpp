/// Clocks of ranks, compared by what happened before what.
///
/// Each rank notes times by a clock of its own; nobody knows how they differ. But a task that
/// awaits another's signal began after that one did, whatever the clocks say:
///
///     rank a  ....[ signals      ].........        begun(a) + shift(a) <= begun(b) + shift(b)
///                   \                              where shift(r) is what must be added to the
///     rank b  .......-->[ awaits   ].......        readings of r
///
/// The begin of the one that signals counts and not its end, since a signal may leave before its
/// worker has noted the end. Of an event that is carried by the data the end of the one that awaits
/// counts, since its body awaits. A signal that a body sends as often as it finds says nothing: it
/// may never have been sent.
///
/// So every signal between ranks is a bound on the difference of two shifts,
///
///     shift(a) - shift(b) <= begun(b) - begun(a),
///
/// and the tightest of each pair and direction is kept. Bounds add up along paths: with those by
/// way of other ranks taken in (Floyd and Warshall), each pair has the tightest that all signals
/// together allow. Then the ranks are placed one after the other, each where its bounds to those
/// already placed say: in the middle if they are of both directions, as far as one direction allows
/// if signals go one way only. A rank without any begins its first task when the reference does.
/// What is known best is placed first.
///
/// Clocks that drift, or readings that are wrong, give bounds that contradict one another: then the
/// middle is taken all the same, and the result says by how much they do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

/// Why a clock was moved as it was.
enum class ClockSource : uint8_t {
  reference,   ///< not moved: the others are moved to it
  both_sides,  ///< the middle of bounds of both directions
  one_side,    ///< as far as signals of one direction allow
  first_task   ///< no signals: its first task begins when the reference's does
};

struct ClockShift {
  uint32_t rank = 0;
  ClockSource source = ClockSource::reference;
  int64_t shift_ns = 0;  ///< to add to its readings, for those of the reference
  /// What signals, also through other ranks, say that it is at least and at most.
  std::optional<int64_t> at_least_ns = std::nullopt, at_most_ns = std::nullopt;
  uint64_t contradiction_ns = 0;  ///< the most by which bounds of this rank contradict one another
};

/// [traces], in their order. The reference is the lowest rank that ran a task. Throws
/// InvalidArgument if two traces are of one rank.
std::vector<ClockShift> align_clocks(std::span<const Trace> traces);

}  // namespace tokenyard::megakernel
