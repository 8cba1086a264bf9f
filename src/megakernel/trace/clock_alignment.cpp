#include "megakernel/trace/clock_alignment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "megakernel/trace/span_index.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();

/// Readings of one clock, relative to the begin of its first task: small enough to be exact as
/// double, whatever the clock's origin.
struct TracedClock {
  uint64_t zero_ns = 0;
  bool ran = false;

  explicit TracedClock(const Trace& trace) : ran(!trace.spans.empty()) {
    if (ran) zero_ns = std::ranges::min(trace.spans, {}, &TraceSpan::begun_ns).begun_ns;
  }
  double since(uint64_t ns) const {
    return ns >= zero_ns ? static_cast<double>(ns - zero_ns) : -static_cast<double>(zero_ns - ns);
  }
};

/// Returns, per event and iteration, the time at which the first task that awaits it continued.
std::map<std::pair<uint32_t, uint64_t>, double> ends_of_waits(const Trace& trace,
                                                              const TracedClock& clock) {
  std::map<std::pair<uint32_t, uint64_t>, double> ends;
  for (const TraceSpan& span : trace.spans)
    for (const TraceWait& wait : trace.tasks[span.task].waits) {
      if (span.iteration < wait.lag) continue;
      const bool carried = trace.events[wait.event].carried;
      const double end = clock.since(carried ? span.ended_ns : span.begun_ns);
      const auto [at, is_new] = ends.try_emplace({wait.event, span.iteration - wait.lag}, end);
      if (!is_new) at->second = std::min(at->second, end);
    }
  return ends;
}

/// Bounds on the differences of clock shifts.
class ClockBounds {
 public:
  explicit ClockBounds(std::span<const Trace> traces)
      : ranks_(traces.size()),
        most_(ranks_, std::vector<double>(ranks_, kNoBound)),
        contradiction_(ranks_, 0) {
    std::vector<SpanIndex> spans;
    for (const Trace& trace : traces) {
      clocks.emplace_back(trace);
      spans.emplace_back(trace);
    }
    for (size_t to = 0; to < ranks_; ++to) take(traces, spans, to);
    tighten();
  }

  std::vector<TracedClock> clocks;

  /// Returns the upper bound of shift(a) - shift(b).
  double most(size_t a, size_t b) const { return most_[a][b]; }
  double contradiction(size_t a) const { return contradiction_[a]; }

 private:
  /// Adds the bounds from all signals that tasks of one trace await.
  void take(std::span<const Trace> traces, const std::vector<SpanIndex>& spans, size_t to) {
    std::map<uint32_t, size_t> places;
    for (size_t i = 0; i < ranks_; ++i) places[traces[i].rank] = i;
    const auto ends = ends_of_waits(traces[to], clocks[to]);
    for (uint32_t event = 0; event < traces[to].events.size(); ++event)
      for (const TraceSignal& signal : traces[to].events[event].signals) {
        const auto from = places.find(signal.rank);
        if (signal.dynamic || from == places.end() || from->second == to) continue;
        const size_t a = from->second;
        for (const SpanIndex::Place& place : spans[a].of(signal.task)) {
          const auto end = ends.find({event, place.iteration});
          if (end == ends.end()) continue;
          const double begun = clocks[a].since(traces[a].spans[place.span].begun_ns);
          most_[a][to] = std::min(most_[a][to], end->second - begun);
        }
      }
  }

  void tighten() {
    for (size_t a = 0; a < ranks_; ++a)
      for (size_t b = 0; b < a; ++b) reconcile(a, b);
    for (size_t by = 0; by < ranks_; ++by)
      for (size_t a = 0; a < ranks_; ++a)
        for (size_t b = 0; b < a; ++b) {
          if (a == by || b == by) continue;
          most_[a][b] = std::min(most_[a][b], most_[a][by] + most_[by][b]);
          most_[b][a] = std::min(most_[b][a], most_[b][by] + most_[by][a]);
          reconcile(a, b);
        }
  }

  /// Moves two contradictory bounds to their middle, so that no bound grows without limit around a
  /// cycle of ranks.
  void reconcile(size_t a, size_t b) {
    const double missing = -(most_[a][b] + most_[b][a]);
    if (!(missing > 0)) return;
    const double middle = (most_[a][b] - most_[b][a]) / 2;
    most_[a][b] = middle;
    most_[b][a] = -middle;
    for (const size_t rank : {a, b}) contradiction_[rank] = std::max(contradiction_[rank], missing);
  }

  size_t ranks_;
  std::vector<std::vector<double>> most_;
  std::vector<double> contradiction_;  ///< [ranks] the largest, in ns
};

/// The interval that bounds to placed ranks leave for a shift; it may be empty.
struct Interval {
  double low = -kNoBound, high = kNoBound;

  ClockSource source() const {
    const int sides = (low > -kNoBound ? 1 : 0) + (high < kNoBound ? 1 : 0);
    if (sides == 2) return ClockSource::both_sides;
    return sides == 1 ? ClockSource::one_side : ClockSource::first_task;
  }
  /// Compares by source; of two intervals with both bounds, the narrower is better.
  bool better_than(const Interval& other) const {
    if (source() != other.source()) return source() < other.source();
    return source() == ClockSource::both_sides && high - low < other.high - other.low;
  }
  double chosen() const {
    switch (source()) {
      case ClockSource::both_sides:
        return low + (high - low) / 2;
      case ClockSource::one_side:
        return low > -kNoBound ? low : high;
      case ClockSource::reference:
      case ClockSource::first_task:
        break;
    }
    return 0;  // First tasks begin together.
  }
};

/// Places the clocks of ranks one after another.
class ClockPlacing {
 public:
  ClockPlacing(const ClockBounds& bounds, size_t reference)
      : bounds_(bounds), places_(bounds.clocks.size()), intervals_(places_.size()) {
    places_[reference] = 0;
    for (size_t placed = 1; placed < places_.size(); ++placed) {
      const size_t next = best_of_rest();
      intervals_[next] = interval_of(next);
      places_[next] = intervals_[next].chosen();
    }
  }
  double place(size_t rank) const { return *places_[rank]; }
  const Interval& interval(size_t rank) const { return intervals_[rank]; }

 private:
  Interval interval_of(size_t rank) const {
    Interval interval;
    for (size_t other = 0; other < places_.size(); ++other) {
      if (!places_[other]) continue;
      interval.low = std::max(interval.low, *places_[other] - bounds_.most(other, rank));
      interval.high = std::min(interval.high, *places_[other] + bounds_.most(rank, other));
    }
    return interval;
  }
  size_t best_of_rest() const {
    std::optional<size_t> best;
    for (size_t rank = 0; rank < places_.size(); ++rank)
      if (!places_[rank] && (!best || interval_of(rank).better_than(interval_of(*best))))
        best = rank;
    return *best;
  }

  const ClockBounds& bounds_;
  std::vector<std::optional<double>> places_;  ///< [ranks]
  std::vector<Interval> intervals_;            ///< [ranks]
};

/// Returns the index in `traces` of the lowest rank that ran a task, or of the lowest rank if none
/// did.
size_t reference_of(std::span<const Trace> traces) {
  return static_cast<size_t>(
      std::ranges::min_element(
          traces, {},
          [](const Trace& trace) { return std::pair(trace.spans.empty(), trace.rank); }) -
      traces.begin());
}

void check_ranks_differ(std::span<const Trace> traces) {
  for (size_t i = 0; i < traces.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (traces[i].rank == traces[j].rank)
        throw InvalidArgument("traces", "one per rank",
                              fmt::format("two of rank {}", traces[i].rank));
}

}  // namespace

std::vector<ClockShift> align_clocks(std::span<const Trace> traces) {
  check_ranks_differ(traces);
  if (traces.empty()) return {};
  const ClockBounds bounds(traces);
  const size_t reference = reference_of(traces);
  const ClockPlacing placing(bounds, reference);
  const uint64_t zero_ns = bounds.clocks[reference].zero_ns;
  std::vector<ClockShift> shifts;
  for (size_t i = 0; i < traces.size(); ++i) {
    ClockShift& shift = shifts.emplace_back(ClockShift{.rank = traces[i].rank});
    if (i == reference || !bounds.clocks[i].ran) {
      if (i != reference) shift.source = ClockSource::first_task;
      continue;
    }
    const Interval& interval = placing.interval(i);
    shift.source = interval.source();
    // Difference of the two origins, modulo 2^64: either clock may be ahead.
    const uint64_t between = zero_ns - bounds.clocks[i].zero_ns;
    const auto shift_of = [&](double place) -> std::optional<int64_t> {
      if (std::isinf(place)) return std::nullopt;
      return static_cast<int64_t>(between + static_cast<uint64_t>(std::llround(place)));
    };
    shift.shift_ns = *shift_of(placing.place(i));
    shift.at_least_ns = shift_of(-bounds.most(reference, i));
    shift.at_most_ns = shift_of(bounds.most(i, reference));
    shift.contradiction_ns = static_cast<uint64_t>(
        std::max({0.0, std::ceil(bounds.contradiction(i)), interval.low - interval.high}));
  }
  return shifts;
}

}  // namespace tokenyard::megakernel
