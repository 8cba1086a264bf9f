// The verdict that follows from promises: a pure function of the members' reports.
#include "membership/composition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "membership/promised.hpp"

namespace tokenyard::membership {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Composition, WhoStalledIsEvictedIfTheJobSaysSo) {
  Promised ranks({1, 1, 0});
  ranks.promises[0].timeout_reports = {{.slot = 2, .group = 0, .sequence = 1}};
  for (const bool evict : {false, true}) {
    const auto verdict = ranks.compose(evict);
    ASSERT_TRUE(verdict);
    EXPECT_THAT(verdict->stalled, ElementsAre(2));
    EXPECT_EQ(slots_of(verdict->next).size(), evict ? 2u : 3u);
  }
}

// The late rank began the operation before it promised, and all have done it by now.
TEST(Composition, NobodyIsBlamedForWhatIsDone) {
  Promised ranks({1, 1, 2});
  ranks.promises[0].timeout_reports = {{.slot = 2, .group = 0, .sequence = 1}};
  ranks.promises[2].progress[0].committed = 1;
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, IsEmpty());
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2));
}

// Rank 0 had waited for rank 1 in a group of both, which was done, and had just begun with it an
// operation that rank 2 was about to begin: rank 2 was taken for the one that all waited for.
TEST(Composition, NobodyIsBlamedForWhatHasJustBegunInAnotherGroup) {
  Promised ranks({1, 1, 0});
  for (const Slot slot : {Slot{0}, Slot{1}})
    ranks.promises[slot].progress.push_back({7, {0, 1}, 0, 1});
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 7, .sequence = 1}};
  ranks.promises[1].progress[1].committed = 1;
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, IsEmpty());
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2));
}

// Rank 1 does not come to the group of two while it waits, with rank 0, for rank 2.
TEST(Composition, WhoIsWaitedForInAnotherGroupIsBlamedForWhatIsNotDone) {
  Promised ranks({1, 1, 0});
  ranks.promises[0].progress.push_back({7, {0, 1}, 0, 1});
  ranks.promises[1].progress.push_back({7, {0, 1}, 0, 0});
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 7, .sequence = 1}};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, ElementsAre(2));
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1));
}

/// Rank 0 waits past its deadline for rank 1, which does not come, in operation 5 of group 7.
/// `begun`: operations under way on each of the group's ranks after `committed`.
struct Overdue : Promised {
  Overdue() : Promised({0, 0, 0, 0}) {
    progress(7, 4, {{0, 5}, {1, 4}});
    promises[0].timeout_reports = {{.slot = 1, .group = 7, .sequence = 5}};
  }
  void progress(GroupId group, Sequence committed, const std::map<Slot, Sequence>& begun) {
    std::vector<Slot> slots;
    for (const auto& [slot, sequence] : begun) slots.push_back(slot);
    for (const auto& [slot, sequence] : begun)
      promises[slot].progress.push_back({group, slots, committed, sequence});
  }
  /// Applies to the group added last.
  void commits(Slot slot, Sequence sequence) {
    promises[slot].progress.back().committed = sequence;
  }
  void reports_timeout(Slot sender, const TimeoutReport& timeout_report) {
    promises[sender].timeout_reports.push_back(timeout_report);
  }
  std::vector<Slot> stalled() const { return compose(true)->stalled; }
};

TEST(Composition, WhoHasNotBegunWhatIsOverdueIsBlamed) {
  EXPECT_THAT(Overdue().stalled(), ElementsAre(1));
}

// Rank 1 was taken for a waiting rank, because both had begun some operation, and rank 2 for the
// one that both waited for, although rank 1 is not even in that group.
TEST(Composition, WhatTheAccuserHasJustBegunElsewhereIsNoReason) {
  for (const bool done : {false, true}) {
    Overdue ranks;
    ranks.progress(8, 2, {{0, 3}, {1, 3}});
    if (done) ranks.commits(1, 3);
    ranks.progress(9, 0, {{0, 1}, {2, 0}});
    EXPECT_THAT(ranks.stalled(), ElementsAre(1)) << "done: " << done;
  }
}

// Rank 1 has come after all, too late for the operation to be done.
TEST(Composition, NobodyElseIsBlamedForWhatAllHaveBegun) {
  Overdue ranks;
  ranks.promises[1].progress.back().begun = 5;
  ranks.progress(9, 0, {{0, 1}, {2, 0}});
  ranks.progress(10, 0, {{1, 1}, {3, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(1));
}

// Rank 0 hears only of its neighbour, which has begun and waits as well. The neighbour's other
// operation is on time.
TEST(Composition, WhoIsNamedAndHasBegunWaitsForWhoHasNot) {
  Promised ranks({1, 1, 1, 0});
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 0, .sequence = 1}};
  ranks.promises[1].progress.push_back({9, {1, 2}, 0, 1});
  ranks.promises[2].progress.push_back({9, {1, 2}, 0, 0});
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(3));
}

// Stages of a pipeline: a waiting rank was blamed if its neighbour's deadline passed first.
TEST(Composition, WhoIsLateIsFollowedToThoseForWhomItWaits) {
  Overdue ranks;
  ranks.progress(9, 0, {{1, 1}, {2, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(2));
  ranks.progress(10, 0, {{2, 1}, {3, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(3));
}

TEST(Composition, WhatIsDoneIsNoExcuse) {
  Overdue ranks;
  ranks.progress(9, 0, {{1, 1}, {2, 1}, {3, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(3));
  ranks.commits(2, 1);
  EXPECT_THAT(ranks.stalled(), ElementsAre(1));
}

// Rank 2 has just been released, and is a moment ahead of rank 3.
TEST(Composition, NobodyIsFollowedWhereOneThatIsLateWaitsForNobody) {
  Overdue ranks;
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 11, .sequence = 1},
                                       {.slot = 2, .group = 11, .sequence = 1}};
  ranks.progress(11, 0, {{0, 1}, {1, 0}, {2, 0}});
  ranks.progress(9, 0, {{2, 1}, {3, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(1));
}

// Rank 1 is late because rank 2 is, and reports it; its operation with rank 3 is on time.
TEST(Composition, WhoNamesSomebodyIsJudgedByThat) {
  Overdue ranks;
  ranks.progress(9, 0, {{1, 1}, {2, 0}});
  ranks.progress(10, 0, {{1, 1}, {3, 0}});
  ranks.reports_timeout(1, {.slot = 2, .group = 9, .sequence = 1});
  EXPECT_THAT(ranks.stalled(), ElementsAre(2));
  ranks.promises[2].progress.back().begun = 1;  // too late
  EXPECT_THAT(ranks.stalled(), ElementsAre(2));
}

// Rank 1 has just come out of its stall and begun an operation of all ranks; the others have waited
// for rank 1 until now.
TEST(Composition, WhoHasBegunWhatTheOthersBeginNextIsNotExcused) {
  Overdue ranks;
  ranks.progress(9, 0, {{0, 0}, {1, 1}, {2, 0}, {3, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(1));
}

// Rank 0 calls one operation first, rank 1 the other; neither involves rank 2. The deadline that
// passes first makes no difference: the reported rank is late.
TEST(Composition, WhoeverWaitsInACircleIsBlamedIfItIsLateForWhatIsOverdue) {
  Overdue ranks;
  ranks.progress(8, 2, {{0, 2}, {1, 3}});
  ranks.progress(9, 0, {{0, 1}, {2, 0}});
  EXPECT_THAT(ranks.stalled(), ElementsAre(1));
  ranks.reports_timeout(1, {.slot = 0, .group = 8, .sequence = 3});
  EXPECT_THAT(ranks.stalled(), ElementsAre(0, 1));
}

// Ranks 0 and 2 are each late for an operation of the other. Rank 1, which rank 2 reports, is not.
TEST(Composition, WhoAccusesOthersIsNotExcusedByWhoWaitsForIt) {
  Promised ranks({0, 1, 1});
  ranks.promises[0].progress.push_back({7, {0, 2}, 0, 1});
  ranks.promises[2].progress.push_back({7, {0, 2}, 0, 0});
  ranks.promises[0].timeout_reports = {{.slot = 2, .group = 7, .sequence = 1}};
  ranks.promises[2].timeout_reports = {{.slot = 1, .group = 0, .sequence = 1}};
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(0, 2));
}

// Two ranks in a circle; others hear only of their neighbours, and those were blamed.
TEST(Composition, NeighboursOfACircleAreNotBlamed) {
  Promised ranks({1, 1, 0, 1});
  for (const Slot slot : {Slot{0}, Slot{1}, Slot{2}, Slot{3}})
    ranks.promises[slot].progress.push_back({7, {0, 1, 2, 3}, 0, slot == 1 ? 0u : 1u});
  ranks.promises[0].timeout_reports = {{.slot = 3, .group = 7, .sequence = 1}};
  ranks.promises[3].timeout_reports = {{.slot = 0, .group = 0, .sequence = 1}};
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(1, 2));
}

TEST(Composition, NobodyIsBlamedForWhatWasGivenUp) {
  Promised ranks({0, 1, 0});
  ranks.promises[0].timeout_reports = {{.slot = 2, .group = 0, .sequence = 1}};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, IsEmpty());
}

// Two of three ranks left after waiting in vain for the third. Together they were a quorum that
// could evict it, but then nobody would go on. So there was no verdict, and the last rank asked
// forever.
TEST(Composition, TheLastThatStaysIsNotEvicted) {
  Promised ranks({1, 1, 0});
  ranks.promises[1].timeout_reports = {{.slot = 2, .group = 0, .sequence = 1}};
  ranks.leaving = {0, 1};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(2));
  EXPECT_THAT(verdict->left, ElementsAre(0, 1));
  EXPECT_THAT(verdict->stalled, ElementsAre(2));
}

// Of two ranks that do not hear each other the higher goes, unless the lower goes anyway; once,
// both went.
TEST(Composition, WhoStalledTakesNobodyAlong) {
  Promised ranks({1, 1, 0, 1});
  ranks.promises[0].timeout_reports = {{.slot = 2, .group = 0, .sequence = 1}};
  ranks.promises[2].suspected = {3};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 3));
}

TEST(Composition, WhoMakesWayTakesNobodyAlong) {
  Promised ranks({1, 1, 1, 1});
  const Member newcomer{2, 99};
  ranks.promises[0].admits = {2};
  ranks.promises[0].waiting = {newcomer};
  ranks.promises[2].suspected = {3};
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(verdict->next.contains(newcomer));
}

// Rank 1 is stopped. Rank 2 waits for it a step behind rank 0, whose failed wait named rank 2:
// once, rank 0 went on alone.
TEST(Composition, WhoWaitedForALostRankIsExcused) {
  Promised ranks({0, 0, 0, 0, 0});
  ranks.promises.erase(1);
  ranks.asks_to_evict(0, 2);
  ranks.asks_to_evict(2, 1);
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(verdict->excused, ElementsAre(0, 2));
  const auto broken = ranks.compose(false, Mutant::waiting_members_evicted);
  ASSERT_TRUE(broken);
  EXPECT_THAT(slots_of(broken->next), ElementsAre(0, 3, 4));
}

// Rank 3 waited for rank 2, which waited for rank 1, which lives and waits for nobody.
TEST(Composition, OfAChainOfWaitsTheLastIsEvicted) {
  Promised ranks({0, 0, 0, 0, 0});
  ranks.asks_to_evict(0, 3);
  ranks.asks_to_evict(3, 2);
  ranks.asks_to_evict(2, 1);
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(verdict->excused, ElementsAre(0, 2, 3));
}

TEST(Composition, WhoNamesOneAnotherIsEvicted) {
  Promised ranks({0, 0, 0, 0, 0});
  ranks.asks_to_evict(1, 2);
  ranks.asks_to_evict(2, 1);
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 3, 4));
  EXPECT_THAT(verdict->excused, IsEmpty());
}

// Rank 2 stays only since too few would remain. Rank 1 did not wait for a lost rank.
TEST(Composition, NobodyIsExcusedForOneThatStays) {
  Promised ranks({0, 0, 0});
  ranks.promises.erase(0);
  ranks.asks_to_evict(1, 2);
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(1, 2));
  EXPECT_THAT(verdict->excused, IsEmpty());
}

TEST(Composition, NobodyGoesOnWhereAllLeave) {
  Promised ranks({1, 1, 1});
  ranks.leaving = {0, 1, 2};
  EXPECT_FALSE(ranks.compose(false));
}

}  // namespace
}  // namespace tokenyard::membership
