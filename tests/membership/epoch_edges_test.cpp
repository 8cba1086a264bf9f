// Epochs meet: messages of another epoch, and whatever of one epoch must not last into the next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "membership/driven_member.hpp"
#include "membership/join_queue.hpp"

namespace tokenyard::membership {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Member kReplacement{2, 99};

View second_view() {
  View next = founders(3);
  next.epoch = 2;
  next.members[2] = kReplacement;
  return next;
}

/// Slot 0, which goes on into the second epoch; there, slot 2 has another process.
struct TwoEpochs : testing::Test {
  void end_the_first(Instant now = milliseconds(5)) {
    member.decided(founder(1), second_view(), now);
    member.hear(kReplacement, Heartbeat{}, now);
    member.clear();
  }
  /// Returns its promise in the epoch that it is in.
  Promise promise(std::vector<GroupProgress> progress, Instant now = milliseconds(9)) {
    member.clear();
    member.hear(founder(1), Prepare{{1, 1}}, now);
    member.frozen(std::move(progress), now);
    const auto promises = member.said<Promise>(founder(1));
    EXPECT_THAT(promises, SizeIs(1));
    return promises.empty() ? Promise{} : promises.back();
  }
  DrivenMember member{0};
};

TEST_F(TwoEpochs, AMemberHearsOfAnEndAndKeepsToItsEpoch) {
  end_the_first();
  member.hear(founder(1), Heartbeat{.wants_change = true}, milliseconds(6), 1);
  EXPECT_THAT(member.said<Decide>(founder(1)), SizeIs(1)) << "it missed the verdict";
  for (Instant now = milliseconds(10); now < milliseconds(200); now += milliseconds(10))
    member.tick(now);
  EXPECT_THAT(member.said<Prepare>(), IsEmpty()) << "the wish was of the epoch before";
}

TEST_F(TwoEpochs, AFormerMemberHearsSinceWhenItIsOne) {
  end_the_first();
  member.hear(founder(2), Heartbeat{}, milliseconds(6), 1);
  const auto told = member.said<FencedOff>(founder(2));
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].now, 2u);
}

TEST_F(TwoEpochs, WhoIsAheadHearsThatThisMemberLags) {
  member.hear(founder(1), Heartbeat{.wants_change = true}, milliseconds(6), 2);
  EXPECT_FALSE(member.said<Heartbeat>(founder(1)).empty());
  EXPECT_EQ(member.membership.view().epoch, 1u);
}

TEST_F(TwoEpochs, OnlyALaterEpochFences) {
  member.hear(founder(1), FencedOff{1}, milliseconds(1));
  EXPECT_FALSE(member.membership.is_fenced());
  member.hear(founder(1), FencedOff{2}, milliseconds(2));
  ASSERT_TRUE(member.membership.is_fenced());
  EXPECT_EQ(member.all<Fenced>().at(0).epoch, 2u);
}

TEST_F(TwoEpochs, WhoHasMissedOneIsFenced) {
  View third = second_view();
  third.epoch = 3;
  member.hear(founder(1), Decide{{.next = third, .lost = {2}}}, milliseconds(2));
  EXPECT_TRUE(member.membership.is_fenced());
  EXPECT_THAT(member.all<Install>(), IsEmpty());
}

// Two groups that this member does not know, around one that it knows.
TEST_F(TwoEpochs, FarewellsArePromisedInTheirEpochAlone) {
  const GroupProgress own{.group = 7, .slots = {0, 1, 2}, .committed = 2, .begun = 3};
  member.hear(founder(2),
              Goodbye{{{.group = 5, .slots = {0, 1, 2}, .committed = 6, .begun = 6},
                       {.group = 9, .slots = {0, 1, 2}, .committed = 4, .begun = 4}}},
              milliseconds(1));
  const auto promised = promise({own}, milliseconds(2)).progress;
  ASSERT_THAT(promised, SizeIs(3));
  EXPECT_EQ(promised[1], own);
  for (const size_t other : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(promised[other].group, other == 0 ? 5u : 9u);
    EXPECT_EQ(promised[other].committed, other == 0 ? 6u : 4u);
    EXPECT_EQ(promised[other].begun, 0u) << "this member has begun nothing in it";
  }
  end_the_first();
  EXPECT_THAT(promise({own}).progress, ElementsAre(own));
}

TEST_F(TwoEpochs, AWishThatIsFulfilledIsOver) {
  member.membership.admit({2}, 1, milliseconds(1));
  end_the_first();
  EXPECT_THAT(promise({}).admits, IsEmpty());
}

TEST_F(TwoEpochs, WhoLeavesFreezesInEachEpoch) {
  member.membership.leave(milliseconds(1));
  member.collect();
  ASSERT_THAT(member.all<Freeze>(), SizeIs(1));
  member.frozen({}, milliseconds(1));
  member.clear();
  member.decided(founder(1), second_view(), milliseconds(2));
  const auto freezes = member.all<Freeze>();
  ASSERT_THAT(freezes, SizeIs(1));
  EXPECT_EQ(freezes[0].epoch, 2u);
}

// After a verdict, those who take the effects believe that enough members answer.
TEST_F(TwoEpochs, AQuorumThatIsStillMissingIsReportedAgain) {
  member.hear(founder(1), Prepare{{1, 1}}, milliseconds(1));
  member.frozen({}, milliseconds(1));
  for (Instant now{}; now <= milliseconds(500); now += milliseconds(100)) member.tick(now);
  ASSERT_THAT(member.all<QuorumMissing>(), SizeIs(1));
  member.clear();
  View next = founders(3);
  next.epoch = 2;
  member.hear(founder(1), Decide{{.next = next}}, milliseconds(500));
  ASSERT_THAT(member.all<Install>(), SizeIs(1));
  const auto missing = member.all<QuorumMissing>();
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_THAT(missing[0].answering, ElementsAre(0));
  EXPECT_EQ(missing[0].needed, 2u);
}

TEST(Newcomer, AsksTheMembersOfTheNewestViewThatItHasHeardOf) {
  DrivenMember newcomer(kReplacement, founders(3));
  View next = second_view();
  next.members = {founder(0), {1, 77}};
  newcomer.hear(founder(0), NotYet{next}, milliseconds(1));
  newcomer.clear();
  newcomer.tick(milliseconds(60));
  EXPECT_THAT(newcomer.said<JoinRequest>(Member{1, 77}), SizeIs(1));
  EXPECT_THAT(newcomer.said<JoinRequest>(founder(1)), IsEmpty());
}

TEST(JoinQueue, ForgetsAllThatAskNoMore) {
  JoinQueue queue;
  const Member one{1, 5}, two{2, 6}, three{3, 7};
  for (const Member& member : {one, two, three}) {
    queue.requested(member, milliseconds(10));
    queue.published_of(member, milliseconds(20));
  }
  queue.published_of(two, milliseconds(40));
  queue.forget_older_than(milliseconds(15));
  EXPECT_THAT(queue.all(), ElementsAre(one, two, three));
  EXPECT_THAT(queue.all(true), IsEmpty()) << "only others hear of them";
  queue.forget_older_than(milliseconds(30));
  EXPECT_THAT(queue.all(), ElementsAre(two));
}

}  // namespace
}  // namespace tokenyard::membership
