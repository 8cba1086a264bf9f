// Members lead when they must, and then alone: no reason, no quorum, another leader, a lost
// request, a late answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "membership/driven_member.hpp"

namespace tokenyard::membership {
namespace {

using std::chrono::milliseconds;
using testing::IsEmpty;
using testing::SizeIs;

MembershipOptions with_witness() {
  MembershipOptions options = kOptions;
  options.witness = true;
  return options;
}

void pass(DrivenMember& member, Instant from, Instant to) {
  for (Instant now = from; now <= to; now += milliseconds(10)) member.tick(now);
}

TEST(Leading, WithoutAReasonNobodyLeads) {
  DrivenMember member(0);
  for (Instant now{}; now < std::chrono::seconds(2); now += milliseconds(50)) {
    for (const Slot other : {1u, 2u}) member.hear(founder(other), Heartbeat{}, now);
    member.tick(now);
  }
  EXPECT_THAT(member.said<Prepare>(), IsEmpty());
  EXPECT_THAT(member.all<Freeze>(), IsEmpty());
}

TEST(Leading, WithoutAQuorumNobodyLeads) {
  for (const uint32_t slots : {3u, 4u}) {
    DrivenMember alone(0, slots, with_witness());
    pass(alone, {}, std::chrono::seconds(2));
    EXPECT_THAT(alone.said<Prepare>(), IsEmpty()) << slots;
    EXPECT_THAT(alone.all<AskWitness>(), IsEmpty()) << slots;
    ASSERT_THAT(alone.all<QuorumMissing>(), SizeIs(1)) << slots;
    EXPECT_EQ(alone.all<QuorumMissing>()[0].needed, slots / 2 + 1);
  }
  // Half of the members and the witness suffice.
  DrivenMember one(0, 2, with_witness());
  pass(one, {}, milliseconds(500));
  EXPECT_FALSE(one.said<Prepare>().empty());
}

TEST(Leading, AFollowerGivesTheLeaderTime) {
  DrivenMember member(0);
  member.hear(founder(1), Prepare{{1, 1}}, milliseconds(1));
  member.frozen({}, milliseconds(1));
  for (const int now : {10, 20, 40}) member.tick(milliseconds(now));
  EXPECT_THAT(member.said<Prepare>(), IsEmpty());
  member.tick(milliseconds(1) + 2 * kOptions.ballot);
  ASSERT_FALSE(member.said<Prepare>().empty());
  EXPECT_EQ(member.said<Prepare>()[0].ballot, (Ballot{2, 0}));
}

// Else a member that repeats its goodbye would keep others from leading.
TEST(Leading, ARepeatedGoodbyeDelaysNobody) {
  DrivenMember member(2);
  member.hear(founder(1), Goodbye{}, milliseconds(100));
  member.hear(founder(1), Goodbye{}, milliseconds(115));
  // Slot 0 has the time of one ballot to lead.
  member.tick(milliseconds(119));
  EXPECT_THAT(member.said<Prepare>(), IsEmpty());
  member.tick(milliseconds(120));
  EXPECT_FALSE(member.said<Prepare>().empty());
}

TEST(Leading, APromiseIsForALeader) {
  DrivenMember member(1);
  member.membership.leave(milliseconds(1));
  member.frozen({}, milliseconds(1));
  member.hear(founder(2), Goodbye{}, milliseconds(2));
  EXPECT_THAT(member.said<Promise>(), IsEmpty()) << "nobody has asked";
  member.hear(founder(0), Prepare{{1, 0}}, milliseconds(3));
  EXPECT_THAT(member.said<Promise>(founder(0)), SizeIs(1));
}

TEST(Leading, BothRequestsAreRepeated) {
  DrivenMember leader(0);
  leader.membership.suspect(2, Suspicion::reset, 1, milliseconds(1));
  leader.collect();
  EXPECT_THAT(leader.said<Prepare>(founder(1)), SizeIs(1));
  leader.frozen({}, milliseconds(1));
  leader.tick(milliseconds(1) + kOptions.ballot);
  EXPECT_THAT(leader.said<Prepare>(founder(1)), SizeIs(2));
  leader.hear(founder(1), Promise{.ballot = {1, 0}}, milliseconds(22));
  EXPECT_THAT(leader.said<Accept>(founder(1)), SizeIs(1));
  leader.tick(milliseconds(22) + kOptions.ballot);
  EXPECT_THAT(leader.said<Accept>(founder(1)), SizeIs(2));
  leader.hear(founder(1), Accepted{{1, 0}}, milliseconds(50));
  EXPECT_EQ(leader.membership.view().epoch, 2u);
}

/// Returns the requests of one kind that the witness has got.
template <class Body>
std::vector<Body> asked(const DrivenMember& member) {
  std::vector<Body> found;
  for (const AskWitness& ask : member.all<AskWitness>())
    if (const auto* body = std::get_if<Body>(&ask.message.body)) found.push_back(*body);
  return found;
}

// The witness is slow: its promise for one ballot comes while this member asks for a later one.
TEST(Leading, APromiseOfTheWitnessIsForOneBallot) {
  DrivenMember member(0, 2, with_witness());
  member.membership.suspect(1, Suspicion::reset, 1, milliseconds(1));
  member.frozen({}, milliseconds(1));
  ASSERT_THAT(asked<Prepare>(member), SizeIs(1));
  member.hear(founder(1), Prepare{{2, 1}}, milliseconds(2));
  member.membership.suspect(1, Suspicion::reset, 1, milliseconds(3));
  for (Instant now = milliseconds(10);
       now < std::chrono::seconds(2) && asked<Prepare>(member).size() < 2; now += milliseconds(10))
    member.tick(now);
  ASSERT_THAT(asked<Prepare>(member), SizeIs(2));
  const Ballot second = asked<Prepare>(member)[1].ballot;
  ASSERT_EQ(second, (Ballot{3, 0}));
  const Instant now = std::chrono::seconds(2);
  member.membership.witness_replied({1, Promise{.ballot = {1, 0}}}, now);
  member.collect();
  EXPECT_THAT(asked<Accept>(member), IsEmpty());
  member.membership.witness_replied({1, Promise{.ballot = second}}, now);
  member.collect();
  EXPECT_THAT(asked<Accept>(member), SizeIs(1));
}

}  // namespace
}  // namespace tokenyard::membership
