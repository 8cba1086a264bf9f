// Clocks with known offsets, which are recovered from the order of events.
#include "megakernel/trace/clock_alignment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megakernel/invented_traces.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {
namespace {

class ClocksApart : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(, ClocksApart,
                         testing::Values(0, 1, -1, 1'000'000, -1'000'000, int64_t{1} << 60,
                                         -(int64_t{1} << 60)));

TEST_P(ClocksApart, AreFoundInTheMiddleOfBothDirections) {
  const int64_t ahead = GetParam();
  InventedTraces invented({0, ahead});
  invented.tell(0, 1, 1000, 150);
  invented.tell(1, 0, 2000, 100);
  invented.tell(1, 0, 3000, 170);  // Not a tighter bound.
  const auto shifts = align_clocks(invented.traces);
  EXPECT_EQ(shifts[0].source, ClockSource::reference);
  EXPECT_EQ(shifts[0].shift_ns, 0);
  EXPECT_EQ(shifts[1].source, ClockSource::both_sides);
  EXPECT_EQ(shifts[1].at_least_ns, -ahead - 150);
  EXPECT_EQ(shifts[1].at_most_ns, -ahead + 100);
  EXPECT_EQ(shifts[1].shift_ns, -ahead - 25);
  EXPECT_EQ(shifts[1].contradiction_ns, 0u);
}

TEST_P(ClocksApart, AreAsFarApartAsOneDirectionAllows) {
  const int64_t ahead = GetParam();
  InventedTraces to({0, ahead}), from({0, ahead});
  to.tell(0, 1, 1000, 150);
  to.tell(0, 1, 2000, 120);
  from.tell(1, 0, 1000, 80);
  const ClockShift least = align_clocks(to.traces)[1], most = align_clocks(from.traces)[1];
  EXPECT_EQ(least.source, ClockSource::one_side);
  EXPECT_EQ(least.shift_ns, -ahead - 120);
  EXPECT_EQ(least.at_least_ns, -ahead - 120);
  EXPECT_EQ(least.at_most_ns, std::nullopt);
  EXPECT_EQ(most.source, ClockSource::one_side);
  EXPECT_EQ(most.shift_ns, -ahead + 80);
  EXPECT_EQ(most.at_least_ns, std::nullopt);
  EXPECT_EQ(most.at_most_ns, -ahead + 80);
}

TEST_P(ClocksApart, WithoutSignalsBeginTogether) {
  const int64_t ahead = GetParam();
  InventedTraces invented({0, ahead});
  invented.ran(0, 1000, 1100);
  invented.ran(0, 1200, 1300);
  invented.ran(1, 1700, 1800);
  const ClockShift shift = align_clocks(invented.traces)[1];
  EXPECT_EQ(shift.source, ClockSource::first_task);
  EXPECT_EQ(shift.shift_ns, -ahead - 700);
  EXPECT_EQ(shift.at_least_ns, std::nullopt);
  EXPECT_EQ(shift.at_most_ns, std::nullopt);
}

TEST(ClockAlignment, BoundsAddUpAlongChainsOfRanks) {
  InventedTraces invented({0, 5000, -3000, 900});  // 0 and 2, 2 and 3, 3 and 1.
  uint64_t at = 1000;
  for (const auto& [a, b] : {std::pair(0, 2), std::pair(2, 3), std::pair(3, 1)}) {
    invented.tell(a, b, at, 20);
    invented.tell(b, a, at + 500, 30);
    at += 1000;
  }
  const auto shifts = align_clocks(invented.traces);
  EXPECT_EQ(shifts[1].source, ClockSource::both_sides);
  EXPECT_EQ(shifts[1].at_least_ns, -5000 - 60);
  EXPECT_EQ(shifts[1].at_most_ns, -5000 + 90);
  EXPECT_EQ(shifts[2].shift_ns, 3000 + 5);
  EXPECT_EQ(shifts[3].shift_ns, -900 + 10);
  EXPECT_EQ(shifts[1].shift_ns, -5000 + 15);
}

TEST(ClockAlignment, AWayThroughOthersMayBeTighterThanTheDirectOne) {
  InventedTraces invented({0, 100, 200});
  invented.tell(0, 1, 1000, 400);
  invented.tell(0, 2, 3000, 30);
  invented.tell(2, 1, 4000, 40);
  const auto shifts = align_clocks(invented.traces);
  EXPECT_EQ(shifts[1].at_least_ns, -100 - 70);
  EXPECT_EQ(shifts[1].source, ClockSource::one_side);
}

/// Two producers receive nothing; both signal a third rank.
TEST(ClockAlignment, RanksThatTellTheSameOneAreComparedThroughIt) {
  InventedTraces invented({0, 7000, -400});
  invented.tell(0, 2, 1000, 30);
  invented.tell(1, 2, 2000, 50);
  const auto shifts = align_clocks(invented.traces);
  EXPECT_EQ(shifts[2].shift_ns, 400 - 30);
  EXPECT_EQ(shifts[1].source, ClockSource::one_side);
  EXPECT_EQ(shifts[1].shift_ns, -7000 - 30 + 50);
  // There are no bounds against the reference alone.
  EXPECT_EQ(shifts[1].at_least_ns, std::nullopt);
  EXPECT_EQ(shifts[1].at_most_ns, std::nullopt);
}

TEST(ClockAlignment, OfBoundsThatContradictOneAnotherTheMiddleIsTaken) {
  InventedTraces invented({0, 0});
  const auto early = invented.ran(0, 1000, 1010), late = invented.ran(1, 960, 970);
  invented.signal(early, late);  // It began 40 ns before the task that it awaited.
  invented.tell(1, 0, 5000, 10);
  const auto shifts = align_clocks(invented.traces);
  EXPECT_EQ(shifts[1].source, ClockSource::both_sides);
  EXPECT_EQ(shifts[1].shift_ns, (40 + 10) / 2);
  EXPECT_EQ(shifts[1].contradiction_ns, 30u);
}

/// Each pair alone is consistent.
TEST(ClockAlignment, ContradictionsInACircleOfRanksAreFound) {
  InventedTraces invented({0, 0, 0});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const uint32_t next = (rank + 1) % 3;
    const auto signals = invented.ran(rank, 1000, 1010), awaits = invented.ran(next, 900, 910);
    invented.signal(signals, awaits);
    invented.tell(next, rank, 5000, 600);
  }
  const auto shifts = align_clocks(invented.traces);
  for (const ClockShift& shift : shifts) {
    EXPECT_LT(std::abs(shift.shift_ns), 1000);
    EXPECT_LE(shift.contradiction_ns, 300u);
  }
  EXPECT_GT(shifts[1].contradiction_ns + shifts[2].contradiction_ns, 0u);
}

TEST(ClockAlignment, OfManyRanksWithContradictionsEverywhereIsFinite) {
  constexpr uint32_t kRanks = 40;
  InventedTraces invented(std::vector<int64_t>(kRanks, 0));
  std::mt19937_64 random(1);
  for (uint32_t from = 0; from < kRanks; ++from)
    for (uint32_t to = 0; to < kRanks; ++to) {
      if (from == to) continue;
      const auto signals = invented.ran(from, 100'000 + random() % 1000, 110'000);
      invented.signal(signals, invented.ran(to, 50'000 + random() % 1000, 110'000));
    }
  for (const ClockShift& shift : align_clocks(invented.traces)) {
    EXPECT_LT(std::abs(shift.shift_ns), 1'000'000);
    EXPECT_LT(shift.contradiction_ns, 1'000'000u);
  }
}

TEST(ClockAlignment, WhereBodiesAwaitTheirEndCounts) {
  InventedTraces invented({0, 0});
  const auto signals = invented.ran(0, 1000, 1500), awaits = invented.ran(1, 800, 1600);
  invented.signal(signals, awaits);
  invented.traces[1].events[0].carried = true;
  EXPECT_EQ(align_clocks(invented.traces)[1].at_least_ns, -600);
}

TEST(ClockAlignment, ASignalThatMayNeverHaveBeenSentSaysNothing) {
  InventedTraces invented({0, 0});
  invented.tell(0, 1, 1000, 10);
  invented.traces[1].events[0].signals[0].dynamic = true;
  EXPECT_EQ(align_clocks(invented.traces)[1].source, ClockSource::first_task);
}

TEST(ClockAlignment, AWaitThatLagsIsForTheIterationBefore) {
  InventedTraces invented({0, 0});
  const auto signals = invented.ran(0, 1000, 1010), awaits = invented.ran(1, 900, 910);
  invented.signal(signals, awaits, 1);
  EXPECT_EQ(align_clocks(invented.traces)[1].source, ClockSource::first_task);
  invented.again(signals, 1, 3000, 3010);
  invented.again(awaits, 1, 1020, 1030);
  EXPECT_EQ(align_clocks(invented.traces)[1].at_least_ns, -20);
}

TEST(ClockAlignment, TheLowestRankThatRanIsTheReference) {
  InventedTraces invented({0, 50, 0, 70});
  invented.tell(1, 3, 1000, 10);
  invented.tell(3, 1, 2000, 10);
  invented.tell(2, 3, 3000, 0);
  // Rank 2 has no trace, and rank 0 has run nothing.
  const std::vector<Trace> some{invented.traces[3], invented.traces[0], invented.traces[1]};
  const auto shifts = align_clocks(some);
  EXPECT_EQ(shifts[0].rank, 3u);
  EXPECT_EQ(shifts[0].shift_ns, -20);
  EXPECT_EQ(shifts[1].rank, 0u);
  EXPECT_EQ(shifts[1].source, ClockSource::first_task);
  EXPECT_EQ(shifts[2].rank, 1u);
  EXPECT_EQ(shifts[2].source, ClockSource::reference);
}

TEST(ClockAlignment, OfNothingIsNothing) {
  EXPECT_TRUE(align_clocks({}).empty());
  InventedTraces invented({0, 0});
  for (const ClockShift& shift : align_clocks(invented.traces)) EXPECT_EQ(shift.shift_ns, 0);
}

TEST(ClockAlignment, TwoTracesOfARankAreRefused) {
  InventedTraces invented({0, 0});
  invented.traces[1].rank = 0;
  try {
    align_clocks(invented.traces);
    ADD_FAILURE() << "it was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.expected, "one per rank");
    EXPECT_EQ(error.seen, "two of rank 0");
  }
}

/// Random signals between clocks with random offsets: bounds contain the true offset, results are
/// within bounds, and no signal arrives before it was sent.
TEST(ClockAlignment, NoSignalGoesBackInTimeWhereClocksOnlyDiffer) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<int64_t> ahead{0};
    const uint32_t ranks = 2 + random() % 5;
    while (ahead.size() < ranks)
      ahead.push_back(static_cast<int64_t>(random() % 2'000'000) - 1'000'000);
    InventedTraces invented(ahead);
    for (uint32_t rank = 0; rank < ranks; ++rank) invented.ran(rank, random() % 1000, 1000);
    const uint32_t signals = 1 + random() % (3 * ranks);
    for (uint32_t i = 0; i < signals; ++i) {
      const uint32_t from = random() % ranks, to = (from + 1 + random() % (ranks - 1)) % ranks;
      invented.tell(from, to, 1000 + random() % 100'000, random() % 1000);
    }
    const auto shifts = align_clocks(invented.traces);
    for (uint32_t to = 0; to < ranks; ++to) {
      EXPECT_EQ(shifts[to].contradiction_ns, 0u);
      if (shifts[to].at_least_ns) {
        EXPECT_LE(*shifts[to].at_least_ns, -ahead[to]);
        EXPECT_LE(*shifts[to].at_least_ns, shifts[to].shift_ns);
      }
      if (shifts[to].at_most_ns) {
        EXPECT_GE(*shifts[to].at_most_ns, -ahead[to]);
        EXPECT_GE(*shifts[to].at_most_ns, shifts[to].shift_ns);
      }
      const Trace& trace = invented.traces[to];
      for (const TraceSpan& span : trace.spans)
        for (const TraceWait& wait : trace.tasks[span.task].waits) {
          const TraceSignal& signal = trace.events[wait.event].signals[0];
          const TraceSpan& by = invented.traces[signal.rank].spans[signal.task];
          const auto later = static_cast<int64_t>(span.begun_ns - by.begun_ns);
          // Halves are rounded.
          EXPECT_GE(later + shifts[to].shift_ns - shifts[signal.rank].shift_ns, -1);
        }
    }
  }
}

}  // namespace
}  // namespace tokenyard::megakernel
