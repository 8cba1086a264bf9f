// Seeds that have found something once, each with what it was. The draws of later versions differ,
// so a seed is here only beside a test that tells its story in the open.
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

// A rank called an operation, an epoch mended, and then the operation's time ran out: the checker
// took that for a failure from before the mending.
// EngineFailure.WhatIsUnderWayHasItsTimeAnewWhereAnEpochMends.
TEST(DisasterSeeds, ADeadlinePassesAfterAnEpochHasMended) {
  engine_survives(3161);
}

// Composition.NobodyIsBlamedForWhatHasJustBegunInAnotherGroup.
TEST(DisasterSeeds, WhatIsOverdueIsDoneAndMoreHasBegun) {
  engine_survives(49151);
}

// Composition.WhoIsWaitedForInAnotherGroupIsBlamedForWhatIsNotDone: who came in its place was
// put out time and again.
TEST(DisasterSeeds, SmallGroupsWaitForWhoHoldsUpTheWorld) {
  engine_survives(402102);
}

// Composition.NeighboursOfACircleAreNotBlamed.
TEST(DisasterSeeds, TwoStallAndEachIsLateForWhatTheOtherHasBegun) {
  membership_survives(850094);
}

}  // namespace
}  // namespace tokenyard::collectives::simulated
