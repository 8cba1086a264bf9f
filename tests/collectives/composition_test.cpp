// The verdict that follows from promises: a pure function, fed with what members might have said.
#include "collectives/membership/composition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tokenyard::collectives {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// So many ranks in epoch 1, of which every one has promised and begun `begun[slot]` operations.
struct Promised {
  explicit Promised(const std::vector<Sequence>& begun) {
    view.epoch = 1;
    view.slots = static_cast<uint32_t>(begun.size());
    std::vector<Slot> world;
    for (Slot slot = 0; slot < view.slots; ++slot) world.push_back(slot);
    for (const Slot slot : world) {
      view.members.push_back({slot, slot + 1});
      promises[slot].progress = {{0, world, 0, begun[slot]}};
    }
  }
  std::optional<Verdict> compose(bool evict_stalled) const {
    return collectives::compose({.view = view,
                                 .last = last,
                                 .promises = promises,
                                 .leaving = leaving,
                                 .quorum = Quorum(view, false, Mutant::none),
                                 .evict_stalled = evict_stalled});
  }

  View view;
  Verdict last;
  std::map<Slot, Promise> promises;
  std::set<Slot> leaving;
};

std::vector<Slot> slots_of(const View& view) {
  std::vector<Slot> slots;
  for (const Member& member : view.members) slots.push_back(member.slot);
  return slots;
}

TEST(Composition, WhoStalledIsPutOutIfTheJobSaysSo) {
  Promised ranks({1, 1, 0});
  ranks.promises[0].accusations = {{.slot = 2, .group = 0, .sequence = 1}};
  for (const bool evict : {false, true}) {
    const auto verdict = ranks.compose(evict);
    ASSERT_TRUE(verdict);
    EXPECT_THAT(verdict->stalled, ElementsAre(2));
    EXPECT_EQ(slots_of(verdict->next).size(), evict ? 2u : 3u);
  }
}

// It had begun what it came late for before it promised, and all have that now.
TEST(Composition, NobodyIsBlamedForWhatIsDone) {
  Promised ranks({1, 1, 2});
  ranks.promises[0].accusations = {{.slot = 2, .group = 0, .sequence = 1}};
  ranks.promises[2].progress[0].committed = 1;
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, IsEmpty());
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2));
}

// Rank 0 had waited for rank 1 in a group of both, which was done, and just begun with it what rank
// 2 was to begin a moment later, too: that was taken for the one for whom all waited.
TEST(Composition, NobodyIsBlamedForWhatHasJustBegunInAnotherGroup) {
  Promised ranks({1, 1, 0});
  for (const Slot slot : {Slot{0}, Slot{1}})
    ranks.promises[slot].progress.push_back({7, {0, 1}, 0, 1});
  ranks.promises[0].accusations = {{.slot = 1, .group = 7, .sequence = 1}};
  ranks.promises[1].progress[1].committed = 1;
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, IsEmpty());
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1, 2));
}

// Rank 1 does not come to the group of two while it waits, together with rank 0, for rank 2.
TEST(Composition, WhoIsWaitedForInAnotherGroupIsBlamedForWhatIsNotDone) {
  Promised ranks({1, 1, 0});
  ranks.promises[0].progress.push_back({7, {0, 1}, 0, 1});
  ranks.promises[1].progress.push_back({7, {0, 1}, 0, 0});
  ranks.promises[0].accusations = {{.slot = 1, .group = 7, .sequence = 1}};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, ElementsAre(2));
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(0, 1));
}

TEST(Composition, NobodyIsBlamedForWhatWasGivenUp) {
  Promised ranks({0, 1, 0});
  ranks.promises[0].accusations = {{.slot = 2, .group = 0, .sequence = 1}};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->stalled, IsEmpty());
}

// Two of three left, and had waited in vain for the third: with them gone there was a quorum to put
// it out, and nobody to go on. So there was no verdict, and the last rank asked for ever.
TEST(Composition, TheLastThatStaysIsNotPutOut) {
  Promised ranks({1, 1, 0});
  ranks.promises[1].accusations = {{.slot = 2, .group = 0, .sequence = 1}};
  ranks.leaving = {0, 1};
  const auto verdict = ranks.compose(true);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(slots_of(verdict->next), ElementsAre(2));
  EXPECT_THAT(verdict->left, ElementsAre(0, 1));
  EXPECT_THAT(verdict->stalled, ElementsAre(2));
}

// Of two that do not hear each other the higher goes, unless the lower one goes anyway: both went.
TEST(Composition, WhoStalledTakesNobodyAlong) {
  Promised ranks({1, 1, 0, 1});
  ranks.promises[0].accusations = {{.slot = 2, .group = 0, .sequence = 1}};
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

TEST(Composition, NobodyGoesOnWhereAllLeave) {
  Promised ranks({1, 1, 1});
  ranks.leaving = {0, 1, 2};
  EXPECT_FALSE(ranks.compose(false));
}

}  // namespace
}  // namespace tokenyard::collectives
