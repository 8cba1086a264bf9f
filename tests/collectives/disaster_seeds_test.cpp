// Seeds that once revealed a fault, each with its cause. Later versions draw differently, so a seed
// is kept only next to a test that shows the same case explicitly.
#include <gtest/gtest.h>

#include "collectives/simulated/disaster.hpp"
#include "collectives/simulated/with_engine.hpp"

namespace tokenyard::collectives::simulated {
namespace {

void engine_survives(uint64_t seed) {
  simulation::Trace trace;
  simulation::SeedRun run(seed, trace, nullptr);
  EXPECT_NO_THROW(Disaster(run, {}, with_engine()).happen()) << "seed " << seed;
}

void membership_survives(uint64_t seed) {
  simulation::Trace trace;
  simulation::SeedRun run(seed, trace, nullptr);
  EXPECT_NO_THROW(Disaster(run, {}).happen()) << "seed " << seed;
}

// Composition.TheLastThatStaysIsNotEvicted.
TEST(DisasterSeeds, TwoOfThreeLeaveAndBlameTheThird) {
  engine_survives(3120);
}

// A rank called an operation, an epoch recovered, and then the operation's time ran out: the
// checker took that for a failure from before the recovery. See
// EngineFailure.WhatIsUnderWayHasItsTimeAnewWhereAnEpochMends.
TEST(DisasterSeeds, ADeadlinePassesAfterAnEpochHasMended) {
  engine_survives(3161);
}

// Composition.NobodyIsBlamedForWhatHasJustBegunInAnotherGroup.
TEST(DisasterSeeds, WhatIsOverdueIsDoneAndMoreHasBegun) {
  engine_survives(49151);
}

// Composition.WhoIsWaitedForInAnotherGroupIsBlamedForWhatIsNotDone: its replacements were evicted
// over and over.
TEST(DisasterSeeds, SmallGroupsWaitForWhoHoldsUpTheWorld) {
  engine_survives(402102);
}

// Composition.NeighboursOfACircleAreNotBlamed.
TEST(DisasterSeeds, TwoStallAndEachIsLateForWhatTheOtherHasBegun) {
  membership_survives(850094);
}

}  // namespace
}  // namespace tokenyard::collectives::simulated
