// Members and verdicts at their edges: the second of two reports, newcomers or evicted ranks,
// wishes that are just in time, options that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "membership/one_member.hpp"
#include "membership/promised.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::membership {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

// The first report is of an operation that is done.
TEST(VerdictEdges, TheSecondReportOfARankCounts) {
  Promised ranks({1, 1, 0});
  for (const Slot slot : {Slot{0}, Slot{1}})
    ranks.promises[slot].progress.push_back({7, {0, 1}, 1, 1});
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 7, .sequence = 1},
                                       {.slot = 2, .group = 0, .sequence = 1}};
  std::swap(ranks.promises[0].timeout_reports[0], ranks.promises[0].timeout_reports[1]);
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(2));
  std::swap(ranks.promises[0].timeout_reports[0], ranks.promises[0].timeout_reports[1]);
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(2));
}

// Rank 0 waits for rank 1 in one group, and for rank 2 in another.
TEST(VerdictEdges, BothReportsOfARankCount) {
  Promised ranks({0, 0, 0, 0});
  for (const Slot late : {Slot{1}, Slot{2}}) {
    const GroupId group = 6 + late;
    ranks.promises[0].progress.push_back({group, {0, late}, 0, 1});
    ranks.promises[late].progress.push_back({group, {0, late}, 0, 0});
    ranks.promises[0].timeout_reports.push_back({.slot = late, .group = group, .sequence = 1});
  }
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(1, 2));
}

// Rank 2 does not know the group in which the others wait for it, only a later one.
TEST(VerdictEdges, WhoDoesNotKnowAGroupIsLateForIt) {
  Promised ranks({0, 0, 0});
  for (const Slot slot : {Slot{0}, Slot{1}})
    ranks.promises[slot].progress.push_back({7, {0, 1, 2}, 0, 1});
  ranks.promises[2].progress.push_back({9, {0, 1, 2}, 0, 5});
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 7, .sequence = 1}};
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(2));
}

TEST(VerdictEdges, WhoIsReportedIsBlamedWhereNobodyIsLate) {
  Promised ranks({1, 1, 1});
  ranks.promises[0].timeout_reports = {{.slot = 1, .group = 0, .sequence = 1}};
  EXPECT_THAT(ranks.compose(true)->stalled, ElementsAre(1));
}

TEST(VerdictEdges, AllNewcomersThatAreWishedForAreAdmitted) {
  Promised ranks({0, 0, 0, 0, 0});
  const Member one{3, 90}, other{4, 91};
  ranks.promises[0].admits = {3};
  ranks.promises[1].admits = {4};
  ranks.promises[2].waiting = {one, other};
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(verdict->next.contains(one));
  EXPECT_TRUE(verdict->next.contains(other));
  EXPECT_THAT(verdict->lost, ElementsAre(3, 4));
}

TEST(VerdictEdges, AllThatAreNamedAreEvicted) {
  Promised ranks({0, 0, 0, 0, 0});
  ranks.asks_to_evict(0, 3);
  ranks.asks_to_evict(1, 4);
  const auto verdict = ranks.compose(false);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2));
}

TEST(MemberEdges, OptionsHavePeriods) {
  const Member self{0, 10}, one{1, 11};
  const View view = view_of(1, {self, one});
  EXPECT_NO_THROW(Membership(self, view, kOptions));
  EXPECT_THROW(Membership(self, view_of(0, {self, one}), kOptions), InternalError);
  MembershipOptions changed = kOptions;
  changed.heartbeat = std::chrono::nanoseconds(1);
  EXPECT_NO_THROW(Membership(self, view, changed));
  changed.ballot = milliseconds(0);
  EXPECT_THROW(Membership(self, view, changed), InternalError);
  changed = kOptions;
  changed.heartbeat = milliseconds(0);
  EXPECT_THROW(Membership(self, view, changed), InternalError);
  changed = kOptions;
  changed.silence = 2 * changed.heartbeat;
  EXPECT_THROW(Membership(self, view, changed), InternalError);
}

TEST(MemberEdges, NobodyEvictsItself) {
  OneMember member;
  member.membership.evict(member.self, milliseconds(1));
  member.tick(milliseconds(60));
  EXPECT_FALSE(member.said.wants_change);
  EXPECT_FALSE(member.stands);
  member.membership.evict(member.two, milliseconds(61));
  member.tick(milliseconds(120));
  EXPECT_TRUE(member.said.wants_change);
}

/// A member in epoch 2, in which another process has taken slot 2.
struct InEpochTwo : OneMember {
  InEpochTwo() {
    hear(one, Prepare{{1, 1}}, milliseconds(1));
    membership.frozen({}, milliseconds(1));
    hear(one, Decide{{.next = view_of(2, {self, one, replaced}), .lost = {2}}}, milliseconds(2));
    for (const Member& other : {one, replaced}) hear(other, Heartbeat{}, milliseconds(3));
  }
  std::vector<Slot> admitted() {
    hear(one, Prepare{{1, 1}}, milliseconds(4));
    membership.frozen({}, milliseconds(4));
    collect();
    return promised.admits;
  }
  const Member replaced{2, 13};
};

TEST(MemberEdges, AWishOfTheEpochThatFilledTheSlotIsNotLate) {
  InEpochTwo early;
  early.membership.admit({2}, 1, milliseconds(3));
  EXPECT_THAT(early.admitted(), IsEmpty());
  InEpochTwo member;
  member.membership.admit({2}, 2, milliseconds(3));
  EXPECT_THAT(member.admitted(), ElementsAre(2));
}

TEST(MemberEdges, AWishThatIsWithdrawnIsNotPromised) {
  InEpochTwo member;
  member.membership.admit({2}, 2, milliseconds(3));
  member.membership.withdraw({2});
  EXPECT_THAT(member.admitted(), IsEmpty());
}

}  // namespace
}  // namespace tokenyard::membership
