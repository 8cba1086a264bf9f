// One member of a job, driven by hand: what it says and does at which time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "membership/one_member.hpp"

namespace tokenyard::membership {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

// A pause of the whole machine: all were stopped, and nobody has been silent.
TEST(OneMember, AfterAPauseItsTimersStartAnew) {
  OneMember member;
  member.hear(member.one, Heartbeat{}, milliseconds(10));
  member.hear(member.two, Heartbeat{}, milliseconds(10));
  const Instant wake = std::chrono::seconds(10);
  member.tick(wake);
  EXPECT_THAT(member.said.suspected, IsEmpty());
  EXPECT_FALSE(member.said.wants_change);
  for (Instant now = wake; now < wake + kOptions.silence; now += milliseconds(50)) member.tick(now);
  EXPECT_THAT(member.said.suspected, IsEmpty());
  EXPECT_FALSE(member.stands);
  member.tick(wake + kOptions.silence);
  EXPECT_THAT(member.said.suspected, ElementsAre(1, 2));
}

// Ticks may be late by half a silence: that is no pause.
TEST(OneMember, SilenceIsNoticedByLateTicks) {
  OneMember member;
  member.tick(kOptions.silence / 2);
  member.tick(kOptions.silence);
  EXPECT_THAT(member.said.suspected, ElementsAre(1, 2));
}

TEST(OneMember, WhoIsHeardIsNotSuspected) {
  OneMember member;
  member.tick(milliseconds(200));
  member.hear(member.two, Heartbeat{}, milliseconds(200));
  member.tick(milliseconds(400));
  EXPECT_THAT(member.said.suspected, ElementsAre(1));
}

// A member that was admitted later does not know that a process was a member before, lets it wait,
// and tells the others.
TEST(OneMember, AProcessThatWasEvictedIsNotAdmittedBecauseAnotherMemberTellsOfIt) {
  OneMember member;
  const Member replaced{2, 13}, other{3, 14};
  member.hear(member.one, Prepare{{1, 1}}, milliseconds(1));
  ASSERT_EQ(member.frozen_in, 1u);
  member.membership.frozen({}, milliseconds(1));
  const View next{.epoch = 2, .slots = 4, .members = {member.self, member.one, replaced}};
  member.hear(member.one, Decide{{.next = next, .lost = {2}}}, milliseconds(2));
  ASSERT_EQ(member.membership.view(), next);

  member.hear(replaced, Heartbeat{.waiting = {member.two, other}}, milliseconds(3));
  EXPECT_THAT(member.membership.waiting(), ElementsAre(other));
}

// The leader's verdict counts what other members promise, too.
TEST(OneMember, ALeaderDoesNotAdmitAnEvictedProcessThatAPromiseNames) {
  OneMember member;
  const Member replaced{2, 13};
  member.hear(member.one, Prepare{{1, 1}}, milliseconds(1));
  member.membership.frozen({}, milliseconds(1));
  const View second{.epoch = 2, .slots = 3, .members = {member.self, member.one, replaced}};
  member.hear(member.one, Decide{{.next = second, .lost = {2}}}, milliseconds(2));

  // The replacement dies, and this member leads.
  member.membership.admit({2}, 2, milliseconds(3));
  member.membership.suspect(2, Suspicion::reset, 2, milliseconds(3));
  for (Instant now = milliseconds(10); now < milliseconds(200); now += milliseconds(10))
    member.tick(now);
  ASSERT_TRUE(member.stands);
  member.membership.frozen({}, milliseconds(200));
  member.collect();
  member.hear(member.one, Promise{.ballot = {1, 0}, .admits = {2}, .waiting = {member.two}},
              milliseconds(201));
  member.hear(member.one, Accepted{{1, 0}}, milliseconds(202));
  ASSERT_EQ(member.membership.view().epoch, 3u);
  EXPECT_FALSE(member.membership.view().contains(member.two));
}

// Slot 0 leaves and leads, and rank 1 has asked to go on without it, since it had closed its world.
struct LeavingLeader : testing::Test {
  LeavingLeader() {
    member.membership.leave(milliseconds(1));
    member.membership.frozen({}, milliseconds(1));
    member.hear(member.one, Heartbeat{.suspected = {0}, .wants_change = true}, milliseconds(2));
    for (now = milliseconds(10); !member.stands && now < milliseconds(200); now += milliseconds(10))
      member.tick(now);
    member.hear(member.two, Promise{.ballot = {1, 0}}, now);
  }
  std::vector<Member> members() const { return member.proposed->next.members; }

  OneMember member;
  Instant now{};
};

TEST_F(LeavingLeader, LeavesNobodyBehindThatHasAbandonedIt) {
  ASSERT_TRUE(member.stands);
  EXPECT_FALSE(member.proposed);
  member.hear(member.one, Promise{.ballot = {1, 0}, .evicts = {member.self}}, now);
  ASSERT_TRUE(member.proposed);
  EXPECT_THAT(members(), ElementsAre(member.one, member.two));
}

TEST_F(LeavingLeader, WaitsOneSilenceForWhoDoesNotHearIt) {
  for (const Instant end = now + kOptions.silence * 2; !member.proposed && now < end;) {
    member.hear(member.one, Heartbeat{.suspected = {0}}, now);
    member.hear(member.two, Heartbeat{}, now);
    member.tick(now += milliseconds(10));
  }
  ASSERT_TRUE(member.proposed);
  EXPECT_THAT(members(), ElementsAre(member.two));
}

}  // namespace
}  // namespace tokenyard::membership
