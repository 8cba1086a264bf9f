// Calls that go on after a failure, on engines with a scripted control plane. Each asks for a
// state, and ends whichever call has brought it about, and whenever.

#include "collectives/engine/recovery.hpp"

#include <gmock/gmock.h>

#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A world, and the recovery calls of each rank.
struct Recovering : EngineWorld {
  explicit Recovering(uint32_t ranks) : EngineWorld({.ranks = ranks}) {
    for (Slot slot = 0; slot < ranks; ++slot) {
      recoveries.push_back(std::make_unique<Recovery>(engine(slot), control(slot)));
      recoveries.back()->begin(slot);
    }
  }
  Recovery& of(Slot slot) { return *recoveries.at(slot); }
  void lose(const std::vector<Slot>& slots) { install(agree(slots)); }
  void let_in(const std::vector<Member>& newcomers) { install(agree({}, newcomers)); }
  /// Returns the lost ranks with which a call fails at once; empty if it is under way.
  std::vector<uint32_t> lost_to(Slot slot) {
    const auto error = failure_of<OperationAborted>(*start(slot, barrier_call()));
    return error ? error->lost : std::vector<uint32_t>{};
  }

  std::vector<std::unique_ptr<Recovery>> recoveries;
};

TEST(Recovery, AReplacementThatHasComeBeforeTheCallCounts) {
  Recovering world(3);
  world.lose({1});
  const auto early = world.of(0).replace(1);
  EXPECT_FALSE(early->advance());
  EXPECT_THAT(world.control(0).admitted, ElementsAre(1u));
  world.let_in({{1, 2}});
  EXPECT_TRUE(early->advance());

  EXPECT_THAT(world.lost_to(2), ElementsAre(1u));
  EXPECT_TRUE(world.of(2).replace(1)->advance());
  EXPECT_TRUE(world.of(2).replace(1)->advance());  // the slot is held, whoever asks how often
  EXPECT_THAT(world.control(2).admitted, IsEmpty());
  EXPECT_THAT(world.lost_to(2), IsEmpty());
}

TEST(Recovery, AReplacementIsNotReplacedBecauseAnEpochEnds) {
  Recovering world(3);
  world.lose({1});
  world.let_in({{1, 2}});
  const Verdict next = world.agree({});
  const auto late = world.of(2).replace(1);
  EXPECT_FALSE(late->advance());
  EXPECT_THAT(world.control(2).admitted, IsEmpty());
  world.install(next);
  EXPECT_TRUE(late->advance());
}

TEST(Recovery, ALaterLossOfTheSamePlaceWantsAnotherReplacement) {
  Recovering world(3);
  world.lose({1});
  world.let_in({{1, 2}});
  EXPECT_TRUE(world.of(0).replace(1)->advance());
  world.lose({1});
  const auto again = world.of(0).replace(1);
  EXPECT_FALSE(again->advance());
  world.let_in({{1, 3}});
  EXPECT_TRUE(again->advance());
  // This rank has called nothing so far: one call is enough for both.
  EXPECT_TRUE(world.of(2).replace(1)->advance());
  EXPECT_THAT(world.lost_to(2), IsEmpty());
}

TEST(Recovery, EachOfTwoLossesIsForgottenWithItsOwnReplacement) {
  Recovering world(5);
  world.lose({1});
  world.lose({2});
  EXPECT_THAT(world.lost_to(0), ElementsAre(1u, 2u));
  world.let_in({{2, 2}});
  EXPECT_TRUE(world.of(0).replace(2)->advance());
  EXPECT_THAT(world.lost_to(0), ElementsAre(1u));
  const auto first = world.of(0).replace(1);
  EXPECT_FALSE(first->advance());
  world.let_in({{1, 2}});
  EXPECT_TRUE(first->advance());
  EXPECT_THAT(world.lost_to(0), IsEmpty());
  for (const Slot slot : {1u, 2u}) {  // in the other order, when both have come
    EXPECT_TRUE(world.of(4).replace(slot)->advance());
  }
  EXPECT_THAT(world.lost_to(4), IsEmpty());
}

TEST(Recovery, APlaceThatNobodyHasLostIsTakenOverByTheNextProcess) {
  Recovering world(3);
  const auto call = world.of(0).replace(1);
  EXPECT_FALSE(call->advance());
  EXPECT_THAT(world.control(0).admitted, ElementsAre(1u));
  world.install(world.agree({1}, {{1, 2}}));
  EXPECT_TRUE(call->advance());
}

TEST(Recovery, ACallThatGivesUpWithdrawsItsWishes) {
  Recovering world(3);
  world.lose({1});
  {
    const auto call = world.of(0).replace(1);
    EXPECT_FALSE(call->advance());
    EXPECT_THAT(world.control(0).admitted, ElementsAre(1u));
  }
  EXPECT_THAT(world.control(0).admitted, IsEmpty());
}

TEST(Recovery, RecoverGoesOnWithThoseWhoAreThere) {
  Recovering world(3);
  world.lose({1});
  EXPECT_TRUE(world.of(0).recover(false)->advance());
  EXPECT_THAT(world.lost_to(0), IsEmpty());
  const auto waits = world.of(2).recover(true);
  EXPECT_FALSE(waits->advance());
  EXPECT_THAT(world.control(2).admitted, ElementsAre(1u));
  EXPECT_THAT(world.lost_to(2), ElementsAre(1u));
  world.let_in({{1, 2}});
  EXPECT_TRUE(waits->advance());
  EXPECT_THAT(world.lost_to(2), IsEmpty());
  EXPECT_TRUE(world.of(2).recover(true)->advance());  // with nothing to recover from
}

TEST(Recovery, AfterADeadlineRecoverWaitsForEverybody) {
  Recovering world(3);
  const auto late = world.start(0, barrier_call(), 0, 1s);
  world.poll(10);
  world.pass(2s);
  world.poll(10);
  world.install(world.agree({}));
  ASSERT_TRUE(failure_of<PeerTimeout>(*late));
  {
    const auto call = world.of(0).recover(false);
    EXPECT_FALSE(call->advance());
    EXPECT_TRUE(world.control(0).recovers);
    Verdict recovered = world.agree({});
    world.install(recovered);
    EXPECT_FALSE(call->advance());
    recovered = world.agree({});
    recovered.recovers = true;
    world.install(recovered);
    EXPECT_TRUE(call->advance());
  }
  EXPECT_EQ(error_text(*world.start(0, barrier_call())), "");
}

TEST(Recovery, RanksThatAreLostMeanwhileEndTheWaitForEverybody) {
  Recovering world(4);
  const auto late = world.start(0, barrier_call(), 0, 1s);
  world.poll(10);
  world.pass(2s);
  world.poll(10);
  world.install(world.agree({}));
  ASSERT_TRUE(failure_of<PeerTimeout>(*late));
  const auto call = world.of(0).recover(false);
  EXPECT_FALSE(call->advance());
  world.lose({3});  // all know of that loss, so nobody has to be waited for
  EXPECT_TRUE(call->advance());
  EXPECT_FALSE(world.control(0).recovers);
  EXPECT_EQ(error_text(*world.start(0, barrier_call())), "");
}

/// Ranks come beyond the end; nothing runs on them.
void grow(Recovering& world, Slot last) {
  Verdict verdict = world.agree({});
  const std::vector<Member> members = verdict.next.members;
  verdict.next.slots = last + 1;
  for (Slot slot = 3; slot <= last; ++slot) verdict.next.members.push_back({slot, 1});
  for (const Member& member : members) world.engine(member.slot).install(verdict, {});
}

TEST(Recovery, GrowCountsFromTheCallsBefore) {
  Recovering world(3);
  const auto first = world.of(0).grow(1, 6);
  EXPECT_FALSE(first->advance());
  EXPECT_THAT(world.control(0).admitted, ElementsAre(3u));
  grow(world, 4);  // another rank's calls have let in both already
  EXPECT_TRUE(first->advance());
  for (const Slot slot : {0u, 1u}) {
    if (slot == 1) {
      EXPECT_TRUE(world.of(slot).grow(1, 6)->advance());
    }
    EXPECT_TRUE(world.of(slot).grow(1, 6)->advance());
    EXPECT_FALSE(world.of(slot).grow(1, 6)->advance());
    EXPECT_THROW(world.of(slot).grow(2, 6), InvalidArgument);
    EXPECT_THROW(world.of(slot).grow(~0u, 6), InvalidArgument);
    EXPECT_THROW(world.of(slot).grow(0, 6), InvalidArgument);
  }
}

TEST(Recovery, EvictNamesTheProcessThatItHasSeen) {
  Recovering world(3);
  const auto call = world.of(0).evict(1);
  EXPECT_FALSE(call->advance());
  EXPECT_THAT(world.control(0).evicted, ElementsAre(Member{1, 1}));
  world.install(world.agree({1}, {{1, 2}}));
  EXPECT_TRUE(call->advance());
  EXPECT_THAT(world.control(0).evicted, ElementsAre(Member{1, 1}));
}

TEST(Recovery, AStoppedGroupSaysWhenAndWhyAndWhatContinuesIt) {
  Recovering world(3);
  world.lose({1});
  world.pass(3s);
  const std::string lost = error_text(*world.start(0, barrier_call()));
  EXPECT_THAT(lost, HasSubstr("barrier 1 of group \"world\" was not begun: the group stopped in "
                              "epoch 2, 3.0"));
  EXPECT_THAT(lost, HasSubstr("rank 1 was lost. Collectives.recover, replace or shrink"));
}

}  // namespace
}  // namespace tokenyard::collectives::testing
