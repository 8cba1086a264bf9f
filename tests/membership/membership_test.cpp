// The membership protocol as stories: something happens to named ranks, and all others agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/simulated/job.hpp"

namespace tokenyard::collectives::simulated {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

/// Ranks run operations all the time; some pass between two events.
struct Story {
  explicit Story(JobOptions options) : job(options, 1, trace) { job.run(milliseconds(100)); }

  std::vector<Slot> members() const {
    std::vector<Slot> slots;
    for (const Member& member : job.newest().members) slots.push_back(member.slot);
    return slots;
  }
  Epoch epoch() const { return job.newest().epoch; }
  /// Every survivor has begun the newest epoch, and operations are done in it.
  void expect_work_goes_on() {
    const uint64_t before = job.commits.commits();
    EXPECT_TRUE(job.run_until_it([&] { return job.commits.commits() > before + 20; }, seconds(5)));
    for (Process* process : job.survivors())
      EXPECT_EQ(process->runtime.view(), job.newest()) << "slot " << process->self.slot;
  }

  simulation::Trace trace;
  Job job;
};

TEST(Membership, NothingHappensWhileNothingHappens) {
  Story story({.ranks = 4});
  story.job.run(seconds(20));
  EXPECT_EQ(story.epoch(), 1u);
  story.expect_work_goes_on();
}

TEST(Membership, ADeadRankIsOutAtOnce) {
  for (Slot slot = 0; slot < 4; ++slot) {
    Story story({.ranks = 4});
    story.job.kill(story.job.at(slot));
    story.job.run(milliseconds(20));
    EXPECT_EQ(story.epoch(), 2u);
    EXPECT_EQ(story.members().size(), 3u);
    story.expect_work_goes_on();
  }
}

TEST(Membership, ASilentRankIsOutAfterAWhile) {
  Story story({.ranks = 4});
  story.job.kill(story.job.at(0), false);
  story.job.run(milliseconds(350));
  EXPECT_EQ(story.epoch(), 1u);
  story.job.run(milliseconds(200));
  EXPECT_THAT(story.members(), ElementsAre(1, 2, 3));
  story.expect_work_goes_on();
}

TEST(Membership, TwoDeathsAtOnceAreOneNewEpoch) {
  Story story({.ranks = 5});
  story.job.kill(story.job.at(0));
  story.job.kill(story.job.at(3));
  story.job.run(milliseconds(50));
  EXPECT_EQ(story.epoch(), 2u);
  EXPECT_THAT(story.members(), ElementsAre(1, 2, 4));
  story.expect_work_goes_on();
}

TEST(Membership, WhoWakesTooLateIsFencedAndMayComeBackAsANewcomer) {
  Story story({.ranks = 3});
  Process& sleeper = story.job.at(1);
  story.job.stop(sleeper);
  story.job.run(seconds(1));
  EXPECT_THAT(story.members(), ElementsAre(0, 2));
  story.job.wake(sleeper);
  story.job.run(milliseconds(100));
  EXPECT_TRUE(sleeper.runtime.is_fenced());
  EXPECT_EQ(story.epoch(), 2u) << "its return disturbed the others";
  story.job.admit(story.job.at(2), 1);
  story.job.spawn(1, story.job.at(0));
  story.job.run(milliseconds(200));
  EXPECT_THAT(story.members(), ElementsAre(0, 1, 2));
  story.expect_work_goes_on();
}

TEST(Membership, AShortStopIsForgiven) {
  Story story({.ranks = 3});
  story.job.stop(story.job.at(1));
  story.job.run(milliseconds(250));
  story.job.wake(story.job.at(1));
  story.job.run(seconds(2));
  EXPECT_EQ(story.epoch(), 1u);
  story.expect_work_goes_on();
}

TEST(Membership, WhoeverWakesDoesNotSuspectTheOthers) {
  Story story({.ranks = 3});
  for (Slot slot = 0; slot < 3; ++slot) story.job.stop(story.job.at(slot));
  story.job.run(seconds(10));
  for (Slot slot = 0; slot < 3; ++slot) story.job.wake(story.job.at(slot));
  story.job.run(seconds(2));
  EXPECT_EQ(story.epoch(), 1u);
  story.expect_work_goes_on();
}

TEST(Membership, AMinorityWaitsAndIsFencedWhenTheCutHeals) {
  Story story({.ranks = 5});
  Job& job = story.job;
  for (const Slot few : {0, 3}) {
    for (const Slot many : {1, 2, 4}) {
      job.cut(job.at(few), job.at(many));
      job.cut(job.at(many), job.at(few));
    }
  }
  job.run(seconds(3));
  EXPECT_THAT(story.members(), ElementsAre(1, 2, 4));
  EXPECT_EQ(job.at(0).runtime.view().epoch, 1u);
  EXPECT_FALSE(job.at(0).runtime.is_fenced());
  EXPECT_TRUE(job.at(0).engine->misses_quorum());
  job.network.heal_all();
  job.run(milliseconds(200));
  EXPECT_TRUE(job.at(0).runtime.is_fenced());
  EXPECT_TRUE(job.at(3).runtime.is_fenced());
  story.expect_work_goes_on();
}

/// Cuts 4 ranks into halves, in both directions.
void halve(Job& job) {
  for (const Slot low : {0, 1}) {
    for (const Slot high : {2, 3}) {
      job.cut(job.at(low), job.at(high));
      job.cut(job.at(high), job.at(low));
    }
  }
}

TEST(Membership, WithoutAWitnessNoHalfGoesOn) {
  Story story({.ranks = 4});
  halve(story.job);
  story.job.run(seconds(3));
  EXPECT_EQ(story.epoch(), 1u);
  for (Slot slot = 0; slot < 4; ++slot)
    EXPECT_TRUE(story.job.at(slot).engine->misses_quorum()) << slot;
  story.job.network.heal_all();
  story.job.run(milliseconds(500));
  EXPECT_EQ(story.members().size(), 4u) << "nobody was to be put out";
  for (Slot slot = 0; slot < 4; ++slot)
    EXPECT_FALSE(story.job.at(slot).engine->misses_quorum()) << slot;
  story.expect_work_goes_on();
}

JobOptions with_witness(uint32_t ranks) {
  JobOptions options{.ranks = ranks};
  options.membership.witness = true;
  return options;
}

TEST(Membership, TheWitnessLetsOneHalfGoOn) {
  Story story(with_witness(4));
  halve(story.job);
  story.job.run(seconds(3));
  EXPECT_EQ(story.epoch(), 2u);
  EXPECT_EQ(story.members().size(), 2u);
  story.job.network.heal_all();
  story.expect_work_goes_on();
}

TEST(Membership, OneOfTwoGoesOnIfTheWitnessIsThere) {
  Story story(with_witness(2));
  story.job.kill(story.job.at(0));
  story.job.run(milliseconds(100));
  EXPECT_THAT(story.members(), ElementsAre(1));
  story.expect_work_goes_on();
}

TEST(Membership, ADeadWitnessIsWaitedFor) {
  Story story(with_witness(2));
  story.job.witness_dead = true;
  story.job.kill(story.job.at(0));
  story.job.run(seconds(5));
  EXPECT_EQ(story.epoch(), 1u);
  EXPECT_TRUE(story.job.at(1).engine->misses_quorum());
  story.job.witness_dead = false;
  story.job.run(seconds(1));
  EXPECT_THAT(story.members(), ElementsAre(1));
}

TEST(Membership, TwoThatDoNotHearEachOtherPartAndTheHigherOneGoes) {
  for (const bool both_ways : {false, true}) {
    Story story({.ranks = 5});
    story.job.cut(story.job.at(3), story.job.at(1));
    if (both_ways) story.job.cut(story.job.at(1), story.job.at(3));
    story.job.run(seconds(2));
    EXPECT_THAT(story.members(), ElementsAre(0, 1, 2, 4)) << both_ways;
    EXPECT_EQ(story.epoch(), 2u);
    story.expect_work_goes_on();
  }
}

TEST(Membership, ADeafLeaderIsPassedOver) {
  Story story({.ranks = 4});
  Job& job = story.job;
  for (const Slot other : {1, 2, 3}) job.cut(job.at(other), job.at(0));
  job.run(seconds(2));
  EXPECT_THAT(story.members(), ElementsAre(1, 2, 3));
  story.expect_work_goes_on();
}

TEST(Membership, AStallAbortsAndPutsNobodyOut) {
  JobOptions options{.ranks = 4};
  options.deadline = milliseconds(500);
  Story story(options);
  story.job.get_stuck(story.job.at(2), milliseconds(700));
  story.job.run(milliseconds(600));
  EXPECT_EQ(story.epoch(), 2u);
  EXPECT_THAT(story.members(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(story.job.agreement.verdicts().at(2).stalled, ElementsAre(2));
  EXPECT_GT(story.job.commits.aborts(), 0u);
  story.expect_work_goes_on();
}

TEST(Membership, AStalledRankIsEvictedIfTheJobSaysSo) {
  for (const bool knows_only_neighbours : {false, true}) {
    JobOptions options{.ranks = 4};
    options.deadline = milliseconds(500);
    options.membership.evict_stalled = true;
    options.operations.knows_only_neighbours = knows_only_neighbours;
    Story story(options);
    story.job.get_stuck(story.job.at(2), seconds(5));
    story.job.run(milliseconds(600));
    EXPECT_THAT(story.members(), ElementsAre(0, 1, 3));
    EXPECT_TRUE(story.job.at(2).runtime.is_fenced());
    story.expect_work_goes_on();
  }
}

TEST(Membership, WhoLeavesIsMissedByNobody) {
  Story story({.ranks = 3});
  story.job.leave(story.job.at(0));
  story.job.run(milliseconds(50));
  EXPECT_THAT(story.members(), ElementsAre(1, 2));
  EXPECT_THAT(story.job.agreement.verdicts().at(2).left, ElementsAre(0));
  EXPECT_TRUE(story.job.at(0).over());
  EXPECT_FALSE(story.job.at(0).runtime.is_fenced());
  story.expect_work_goes_on();
}

/// Three ranks whose messages arrive at once, and whose engines freeze when the test says so.
struct Three {
  static constexpr Member members[] = {{0, 1}, {1, 2}, {2, 3}};
  Three() {
    const View first{.epoch = 1, .slots = 3, .members = {members[0], members[1], members[2]}};
    for (const Member& member : members)
      ranks.emplace_back(member, first, membership::MembershipOptions{});
  }
  void frozen(Slot slot, Sequence committed) {
    ranks[slot].frozen({{.slots = {0, 1, 2}, .committed = committed, .begun = 5}}, now);
  }
  /// Delivers messages until there are none.
  void talk() {
    for (bool quiet = false; !std::exchange(quiet, true);) {
      for (const Member& member : members) {
        for (const membership::Effect& effect : ranks[member.slot].take_effects()) {
          quiet = false;
          if (const auto* said = std::get_if<membership::Send>(&effect))
            ranks[said->to.slot].receive(member, said->message, now);
          else if (const auto* install = std::get_if<membership::Install>(&effect))
            verdicts[member.slot] = install->verdict;
        }
      }
    }
  }

  const Instant now = seconds(1);
  std::vector<membership::Membership> ranks;
  std::map<Slot, Verdict> verdicts;
};

// All were in the commit round of operation 5 when one of them left: it had seen the round's end,
// the others had not. They had promised by the time they heard the goodbye, and the leader did not
// wait for new promises.
TEST(Membership, WhatOneHasDoneThatLeavesIsDone) {
  Three three;
  three.ranks[2].leave(three.now);
  three.talk();
  three.frozen(0, 4);
  three.frozen(1, 4);
  three.talk();
  EXPECT_TRUE(three.verdicts.empty()) << "rank 2 has not said how far it is";
  three.frozen(2, 5);
  three.talk();
  for (const Slot slot : {0u, 1u}) {
    EXPECT_THAT(three.verdicts[slot].left, ElementsAre(2));
    EXPECT_EQ(three.verdicts[slot].groups.at(0).committed, 5u) << "rank " << slot;
  }
}

TEST(Membership, AllMayLeaveTogether) {
  Story story({.ranks = 4});
  for (Slot slot = 0; slot < 4; ++slot) story.job.leave(story.job.at(slot));
  story.job.run(milliseconds(300));
  for (Slot slot = 0; slot < 4; ++slot) EXPECT_TRUE(story.job.at(slot).over()) << slot;
}

TEST(Membership, NobodyGetsInUnasked) {
  Story story({.ranks = 3, .slots_max = 4});
  Process& newcomer = story.job.spawn(3, story.job.at(0));
  story.job.run(seconds(2));
  EXPECT_EQ(story.epoch(), 1u);
  EXPECT_THAT(story.job.at(1).runtime.waiting(), ElementsAre(newcomer.self));
  story.job.admit(story.job.at(1), 3);
  story.job.run(milliseconds(100));
  EXPECT_THAT(story.members(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(story.job.newest().slots, 4u);
  story.expect_work_goes_on();
}

TEST(Membership, ANewcomerThatDiesWaitingIsForgotten) {
  Story story({.ranks = 3, .slots_max = 4});
  story.job.kill(story.job.spawn(3, story.job.at(0)));
  story.job.run(seconds(2));
  EXPECT_TRUE(story.job.at(1).runtime.waiting().empty());
  story.job.admit(story.job.at(1), 3);
  story.job.run(seconds(1));
  EXPECT_EQ(story.epoch(), 1u);
}

TEST(Membership, AReplacementEvictsTheProcessInItsSlot) {
  Story story({.ranks = 3});
  Process& old = story.job.at(2);
  story.job.spawn(2, story.job.at(0));
  story.job.run(milliseconds(100));
  story.job.admit(story.job.at(0), 2);
  story.job.run(milliseconds(100));
  EXPECT_TRUE(old.runtime.is_fenced());
  EXPECT_TRUE(story.job.newest().contains(story.job.at(2).self));
  story.expect_work_goes_on();
}

// ---- a second death at every step ---------------------------------------------------------------

/// During the recovery from the death of rank `ranks - 1`, `victim` dies after `steps` events.
/// Returns false if the recovery was over before.
bool dies_while_recovering(uint32_t ranks, Slot victim, uint32_t steps, bool noticed) {
  JobOptions options = with_witness(ranks);
  options.think_most = seconds(1);  // so that little else is under way
  Story story(options);
  Job& job = story.job;
  job.kill(job.at(ranks - 1));
  for (uint32_t step = 0; step < steps; ++step) {
    if (!job.schedule.step(job.schedule.now() + seconds(1))) return false;
    const std::vector<Process*> survivors = job.survivors();
    if (job.newest().epoch == 2 && survivors.size() == ranks - 1 &&
        std::all_of(survivors.begin(), survivors.end(),
                    [](const Process* process) { return process->runtime.view().epoch == 2; }))
      return false;
  }
  job.kill(job.at(victim), noticed);
  job.run(seconds(3));
  Process& survivor = *job.survivors().front();
  if (ranks == 3 && survivor.runtime.view().epoch == 1) {
    // The two dead ranks were a quorum, and may have decided.
    EXPECT_TRUE(survivor.engine->misses_quorum()) << "after " << steps << " steps";
    return true;
  }
  EXPECT_EQ(job.newest().members.size(), ranks - 2) << "slot " << victim << ", step " << steps;
  job.think_most = milliseconds(5);
  story.expect_work_goes_on();
  return true;
}

TEST(Membership, AnyRankMayDieAtAnyStepOfARecovery) {
  for (const uint32_t ranks : {3u, 4u, 5u}) {
    for (Slot victim = 0; victim + 1 < ranks; ++victim) {
      for (const bool noticed : {true, false}) {
        uint32_t steps = 0;
        while (dies_while_recovering(ranks, victim, steps, noticed)) ++steps;
        EXPECT_GT(steps, 8u) << "a recovery has more steps than that";
      }
    }
  }
}

}  // namespace
}  // namespace tokenyard::collectives::simulated
