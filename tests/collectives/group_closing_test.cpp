// Groups whose ranks close them, each in its own time, while ranks die at any step; and names that
// are used again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

using ::testing::HasSubstr;

/// A world in which ranks make a group, use it and close it.
class Groups {
 public:
  explicit Groups(const WorldOptions& options) : world(options), ranks_(options.ranks) {}

  std::shared_ptr<Founding> found(Slot slot, const std::string& name = "a") {
    GroupIdentity identity = {.name = name, .self = slot};
    identity.slots.resize(ranks_);
    std::iota(identity.slots.begin(), identity.slots.end(), 0);
    return world.engine(slot).found_group(identity, 10s);
  }
  /// Founds the group and returns its id, the same on all of `slots`.
  GroupId found_on(const std::vector<Slot>& slots, const std::string& name = "a") {
    std::vector<std::shared_ptr<Founding>> foundings;
    std::vector<std::shared_ptr<Operation>> barriers;
    for (const Slot slot : slots) foundings.push_back(found(slot, name));
    for (const auto& founding : foundings) {
      if (founding->barrier) barriers.push_back(founding->barrier);
    }
    world.run(barriers);
    for (size_t at = 0; at < slots.size(); ++at) {
      if (barriers.size() == slots.size()) {
        EXPECT_EQ(error_text(*barriers[at]), "");
      }
      world.engine(slots[at]).end_founding(foundings[at]);
      EXPECT_EQ(foundings[at]->id, foundings[0]->id);
    }
    return foundings[0]->id;
  }
  void close(GroupId group, const std::vector<Slot>& slots) {
    for (const Slot slot : slots) world.engine(slot).close_group(group);
  }
  /// Waits until only the world is left on these ranks.
  void expect_forgotten(const std::vector<Slot>& slots) {
    for (int round = 0; round < 2000; ++round) {
      bool all = true;
      for (const Slot slot : slots) all = all && world.engine(slot).groups() == 1;
      if (all) return;
      world.poll(1);
    }
    for (const Slot slot : slots) {
      EXPECT_EQ(world.engine(slot).groups(), 1u) << "rank " << slot << " keeps a group";
    }
  }

  EngineWorld world;

 private:
  const uint32_t ranks_;
};

const std::vector<Slot> kThree = {0, 1, 2}, kFour = {0, 1, 2, 3};

TEST(GroupClosing, AnotherGroupOfTheNameBeginsAtOnce) {
  Groups groups({.ranks = 3});
  std::vector<GroupId> ids;
  for (int cycle = 0; cycle < 100; ++cycle) {
    const GroupId id = groups.found_on(kThree);
    EXPECT_THAT(ids, ::testing::Not(::testing::Contains(id)));
    ids.push_back(id);
    std::vector<std::vector<float>> values(3, {1, 2});
    std::vector<std::shared_ptr<Operation>> sums;
    for (const Slot slot : kThree) {
      sums.push_back(groups.world.start(slot, all_reduce_call(array_of(values[slot])), id));
    }
    groups.world.run(sums);
    EXPECT_EQ(values[1], (std::vector<float>{3, 6}));
    groups.close(id, kThree);
  }
  groups.expect_forgotten(kThree);
}

TEST(GroupClosing, OperationsUnderWayEndFirst) {
  Groups groups({.ranks = 3});
  const GroupId id = groups.found_on(kThree);
  std::vector<std::vector<float>> values(3, std::vector<float>(10'000, 1));
  std::vector<std::shared_ptr<Operation>> sums;
  for (const Slot slot : kThree) {
    sums.push_back(groups.world.start(slot, all_reduce_call(array_of(values[slot])), id));
    groups.world.engine(slot).close_group(id);
  }
  groups.world.run(sums);
  for (const auto& sum : sums) EXPECT_EQ(error_text(*sum), "");
  groups.expect_forgotten(kThree);
}

TEST(GroupClosing, CallsOfWhoHasNotClosedItAreRefused) {
  Groups groups({.ranks = 3});
  const GroupId id = groups.found_on(kThree);
  groups.close(id, {0});
  groups.world.poll(100);
  EXPECT_EQ(groups.world.engine(0).groups(), 2u) << "the others use it";
  std::vector<std::shared_ptr<Operation>> barriers;
  for (const Slot slot : {1u, 2u}) barriers.push_back(groups.world.start(slot, barrier_call(), id));
  for (int step = 0; step < 100; ++step) {
    groups.world.pass(10ms);  // a rank that waits for long looks at all others
    groups.world.poll(10);
  }
  for (const auto& barrier : barriers) {
    ASSERT_TRUE(barrier->done());
    EXPECT_TRUE(failure_of<InvalidArgument>(*barrier));
    EXPECT_THAT(error_text(*barrier), HasSubstr("close on rank 0"));
  }
  groups.close(id, {1, 2});
  groups.expect_forgotten(kThree);
  EXPECT_THROW(groups.world.start(1, barrier_call(), id), InvalidArgument);
}

/// Nothing of its own is broken by that.
TEST(GroupClosing, WhoHasClosedItHearsThatAnOperationIsBroken) {
  Groups groups({.ranks = 2});
  const GroupId id = groups.found_on({0, 1});
  groups.world.stop(0);
  const auto barrier = groups.world.start(1, barrier_call(), id, 1s);
  groups.world.pass(5s);
  groups.world.poll(2);
  EXPECT_FALSE(groups.world.control(1).timeout_reports.empty());
  groups.world.install(groups.world.agree({}));
  ASSERT_TRUE(barrier->done());
  EXPECT_TRUE(failure_of<PeerTimeout>(*barrier));
  groups.close(id, {0});
  groups.world.wake(0);
  groups.world.poll(100);
  groups.close(id, {1});
  groups.world.install(groups.world.agree({}));
  groups.expect_forgotten({0, 1});
}

TEST(GroupClosing, ANameIsTakenWhileItsGroupIsOpen) {
  Groups groups({.ranks = 2});
  groups.found_on({0, 1});
  EXPECT_THROW(groups.found(0), InvalidArgument);
  EXPECT_NO_THROW(groups.found(0, "b"));
}

TEST(GroupClosing, MessagesThatNobodyReceivesGoWithTheGroup) {
  Groups groups({.ranks = 2});
  const GroupId id = groups.found_on({0, 1});
  std::vector<float> small(4), large(100'000);
  Engine& sender = groups.world.engine(0);
  const auto eager = sender.send(id, array_of(small), 1, 0, 10s);
  const auto offered = sender.send(id, array_of(large), 1, 0, 10s);
  groups.world.poll(10);
  EXPECT_TRUE(eager->done());
  EXPECT_FALSE(offered->done());
  groups.close(id, {0, 1});
  groups.expect_forgotten({0, 1});
  EXPECT_TRUE(failure_of<Cancelled>(*offered));
}

TEST(GroupClosing, AFoundingGoesOnInTheNextEpoch) {
  Groups groups({.ranks = 4, .on_failure = OnFailure::exclude});
  const auto first = groups.found(0), second = groups.found(1);
  groups.world.poll(50);
  groups.world.install(groups.world.agree({3}));  // ranks 2 and 3 had not come to it
  const auto third = groups.found(2);
  groups.world.run({first->barrier, second->barrier, third->barrier});
  EXPECT_EQ(error_text(*third->barrier), "");
  EXPECT_EQ(first->id, third->id);
  EXPECT_EQ(second->id, third->id);
}

// A rank that had begun counted the groups of the old epoch, and never met one that began in the
// new.
TEST(GroupClosing, AFoundingThatGoesOnCountsAnew) {
  Groups groups({.ranks = 3, .on_failure = OnFailure::exclude});
  for (int before = 0; before < 2; ++before) {
    groups.close(groups.found_on(kThree), kThree);
    groups.expect_forgotten(kThree);
  }
  const auto early = groups.found(0);
  groups.world.install(groups.world.agree({2}));
  const auto late = groups.found(1);
  groups.world.run({early->barrier, late->barrier});
  EXPECT_EQ(early->id, late->id);
}

TEST(GroupClosing, AFoundingThatWasInterruptedIsTheSameWhenItsCallerComesBack) {
  Groups groups({.ranks = 2});
  const auto interrupted = groups.found(0);
  groups.world.poll(10);
  groups.world.engine(0).end_founding(interrupted);  // Ctrl-C
  groups.found_on({0, 1});
}

TEST(GroupClosing, AFoundingThatFailedIsTriedAgain) {
  Groups groups({.ranks = 3});
  const auto first = groups.found(0), second = groups.found(1);
  groups.world.poll(50);
  groups.world.install(groups.world.agree({2}));
  for (const Slot slot : {0u, 1u}) {
    const auto& founding = slot == 0 ? first : second;
    EXPECT_TRUE(failure_of<OperationAborted>(*founding->barrier));
    groups.world.engine(slot).end_founding(founding);
    groups.world.engine(slot).repair(groups.world.epoch());
  }
  groups.found_on({0, 1});
}

TEST(GroupClosing, ANewcomerEntersWhatTheOthersHaveOpen) {
  Groups groups({.ranks = 3, .on_failure = OnFailure::exclude});
  const GroupId closed = groups.found_on(kThree, "closed"), open = groups.found_on(kThree, "open");
  groups.world.install(groups.world.agree({2}));
  groups.close(closed, {0, 1});
  groups.world.install(groups.world.agree({}, {{2, 7}}));
  const auto entered = groups.found(2, "open");
  EXPECT_FALSE(entered->barrier);
  EXPECT_EQ(entered->id, open);
  groups.world.engine(2).end_founding(entered);
  std::vector<std::shared_ptr<Operation>> barriers;
  for (const Slot slot : kThree) barriers.push_back(groups.world.start(slot, barrier_call(), open));
  groups.world.run(barriers);
  // All ranks can found anew the groups that they have closed.
  EXPECT_NE(groups.found_on(kThree, "closed"), closed);
}

/// The result of a death while a group was being closed.
struct Death {
  bool too_late = false;  ///< all had forgotten the group before
  std::string wrong;      ///< the survivors' disagreement; empty: none
};

/// Rank 3 dies some polls after the start of an all_reduce whose callers close their group at once.
/// Rank `late` is polled less often than the others, or no longer.
Death close_and_die(int polls, OnFailure on_failure, Slot late, int stopped_after,
                    EngineMutant mutant) {
  Groups groups({.ranks = 4, .on_failure = on_failure, .mutant = mutant});
  const GroupId id = groups.found_on(kFour);
  std::vector<std::vector<float>> values(4, std::vector<float>(3, 1));
  std::vector<std::shared_ptr<Operation>> sums;
  for (const Slot slot : kFour) {
    sums.push_back(groups.world.start(slot, all_reduce_call(array_of(values[slot])), id));
    groups.world.engine(slot).close_group(id);
  }
  for (int poll = 0; poll < polls; ++poll) {
    for (const Slot slot : kFour) {
      if (slot != late || poll < stopped_after) groups.world.engine(slot).poll(true);
    }
  }
  Death death{.too_late = true, .wrong = {}};
  for (const Slot slot : kFour)
    death.too_late = death.too_late && groups.world.engine(slot).groups() == 1;
  groups.world.install(groups.world.agree({3}));
  groups.world.poll(300);
  for (const Slot slot : kThree) {
    if (!sums[slot]->done()) {
      death.wrong += fmt::format("rank {} waits; ", slot);
    } else if (error_text(*sums[slot]).empty() != error_text(*sums[0]).empty() ||
               values[slot] != values[0]) {
      death.wrong +=
          fmt::format("rank {} ends with \"{}\" and {}, rank 0 with \"{}\" and {}; ", slot,
                      error_text(*sums[slot]), values[slot][0], error_text(*sums[0]), values[0][0]);
    }
    if (groups.world.engine(slot).groups() > 1)
      death.wrong += fmt::format("rank {} keeps the group; ", slot);
  }
  return death;
}

/// Tries every step with every rank late. Returns the first disagreement.
std::string wrong_at_any_step(EngineMutant mutant) {
  for (const OnFailure policy : {OnFailure::raise, OnFailure::exclude}) {
    for (const Slot late : kFour) {
      for (int stopped_after = 0; stopped_after < 14; ++stopped_after) {
        for (int polls = stopped_after; polls < stopped_after + 14; ++polls) {
          const Death death = close_and_die(polls, policy, late, stopped_after, mutant);
          if (!death.wrong.empty()) {
            return fmt::format("{} polls, rank {} stopped after {}: {}", polls, late, stopped_after,
                               death.wrong);
          }
        }
      }
      EXPECT_TRUE(close_and_die(100, policy, late, 100, mutant).too_late);
    }
  }
  return "";
}

TEST(GroupClosing, ARankMayDieAtAnyStepOfIt) {
  EXPECT_EQ(wrong_at_any_step(EngineMutant::none), "");
}

TEST(GroupClosing, ForgettingAtOnceIsNoticed) {
  EXPECT_NE(wrong_at_any_step(EngineMutant::forgotten_when_closed), "");
}

TEST(GroupClosing, ANameWithoutACountIsNoticed) {
  Groups groups({.ranks = 2, .mutant = EngineMutant::foundings_not_counted});
  const GroupId first = groups.found_on({0, 1});
  groups.close(first, {0, 1});
  groups.expect_forgotten({0, 1});
  EXPECT_EQ(groups.found_on({0, 1}), first) << "AnotherGroupOfTheNameBeginsAtOnce shows it";
}

}  // namespace
}  // namespace tokenyard::collectives::testing
