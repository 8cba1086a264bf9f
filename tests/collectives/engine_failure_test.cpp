// Ranks are lost, stop, or take too long. The test plays the control plane.

#include <gmock/gmock.h>

#include <numeric>
#include <optional>

#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

using Operations = std::vector<std::shared_ptr<Operation>>;

std::vector<float> counted(size_t elements, float first) {
  std::vector<float> values(elements);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// An all_reduce of all ranks but some, and their arrays before it.
struct Attempted {
  std::vector<std::vector<float>> values, before;
  Operations operations;

  Attempted(EngineWorld& world, const std::vector<Slot>& ranks, size_t elements,
            Algorithm algorithm = Algorithm::automatic)
      : values(8), before(8) {
    for (const Slot rank : ranks) {
      values[rank] = before[rank] = counted(elements, static_cast<float>(rank));
      operations.push_back(
          world.start(rank, all_reduce_call(array_of(values[rank]), ReduceOp::sum, algorithm)));
    }
  }
};

/// The sum over `ranks` of their arrays before.
std::vector<float> sum_of(const Attempted& attempted, const std::vector<Slot>& ranks) {
  std::vector<float> sum(attempted.before[ranks[0]].size(), 0);
  for (const Slot rank : ranks) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += attempted.before[rank][i];
  }
  return sum;
}

class Losses : public ::testing::TestWithParam<std::tuple<Algorithm, size_t>> {
 protected:
  Algorithm algorithm() const { return std::get<0>(GetParam()); }
  size_t elements() const { return std::get<1>(GetParam()); }
};

// A rank is lost after any number of rounds. Either all survivors have done the operation, or none
// has and their arrays are unchanged.
TEST_P(Losses, AllOrNothingWheneverARankIsLost) {
  int committed = 0, aborted = 0;
  for (int rounds = 0; rounds < 60; rounds += 1 + rounds / 12) {
    EngineWorld world({.ranks = 3, .ring_bytes = 2000, .chunk_bytes = 512});
    Attempted attempted(world, {0, 1, 2}, elements(), algorithm());
    world.poll(rounds);
    const Verdict verdict = world.agree({1});
    world.install(verdict);
    const std::vector<float> sum = sum_of(attempted, {0, 1, 2});
    const bool done = verdict.groups[0].committed == 1;
    (done ? committed : aborted) += 1;
    for (const Slot rank : {Slot{0}, Slot{2}}) {
      const Operation& operation = *attempted.operations[rank];
      ASSERT_TRUE(operation.done());
      if (done) {
        ASSERT_EQ(error_text(operation), "");
        ASSERT_EQ(attempted.values[rank], sum);
      } else {
        const auto error = failure_of<OperationAborted>(operation);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->lost, std::vector<uint32_t>{1});
        EXPECT_EQ(error->sequence, 1u);
        ASSERT_EQ(attempted.values[rank], attempted.before[rank]) << rounds;
      }
      // Calls before a repair fail, alike on all ranks.
      const auto later = world.start(rank, barrier_call());
      EXPECT_TRUE(failure_of<OperationAborted>(*later));
      world.engine(rank).repair(world.epoch());
    }
    Attempted again(world, {0, 2}, elements(), algorithm());
    world.run(again.operations);
    for (const Slot rank : {Slot{0}, Slot{2}}) ASSERT_EQ(again.values[rank], sum_of(again, {0, 2}));
  }
  EXPECT_GT(committed, 0);
  EXPECT_GT(aborted, 0);
}

TEST_P(Losses, ExcludeGoesOnWithoutTheLost) {
  for (int rounds = 0; rounds < 40; rounds += 3) {
    EngineWorld world(
        {.ranks = 4, .ring_bytes = 2000, .chunk_bytes = 512, .on_failure = OnFailure::exclude});
    Attempted attempted(world, {0, 1, 2, 3}, elements(), algorithm());
    world.poll(rounds);
    const Verdict verdict = world.agree({0});
    const bool done = verdict.groups[0].committed == 1;
    world.install(verdict);
    const std::vector<Slot> left = {1, 2, 3};
    world.run({attempted.operations[1], attempted.operations[2], attempted.operations[3]});
    const std::vector<float> sum = sum_of(attempted, done ? std::vector<Slot>{0, 1, 2, 3} : left);
    for (const Slot rank : left) {
      ASSERT_EQ(error_text(*attempted.operations[rank]), "");
      ASSERT_EQ(attempted.values[rank], sum);
    }
  }
}

TEST_P(Losses, RetryWaitsForAReplacement) {
  for (int rounds = 0; rounds < 40; rounds += 3) {
    EngineWorld world(
        {.ranks = 3, .ring_bytes = 2000, .chunk_bytes = 512, .on_failure = OnFailure::retry});
    Attempted attempted(world, {0, 1, 2}, elements(), algorithm());
    world.poll(rounds);
    const Verdict lost = world.agree({2});
    world.install(lost);
    const bool done = lost.groups[0].committed == 1;
    world.poll(50);
    EXPECT_EQ(attempted.operations[0]->done(), done);
    world.install(world.agree({}, {{2, 7}}));
    if (!done) {
      // The new process begins with the others' state.
      std::vector<float> mine = attempted.before[2];
      const auto operation =
          world.start(2, all_reduce_call(array_of(mine), ReduceOp::sum, algorithm()));
      world.run({attempted.operations[0], attempted.operations[1], operation});
      ASSERT_EQ(mine, sum_of(attempted, {0, 1, 2}));
    }
    for (const Slot rank : {Slot{0}, Slot{1}}) {
      ASSERT_EQ(error_text(*attempted.operations[rank]), "");
      ASSERT_EQ(attempted.values[rank], sum_of(attempted, {0, 1, 2}));
    }
  }
}

// One rank is awaited; in the moment it returns, another one is lost and replaced.
TEST_P(Losses, RetryGoesOnWhenTheLastOfThemIsReplacedAsItIsLost) {
  EngineWorld world({.ranks = 3, .on_failure = OnFailure::retry});
  Attempted attempted(world, {0, 1}, elements(), algorithm());
  world.poll(10);
  world.install(world.agree({2}));
  world.poll(10);
  world.install(world.agree({1}, {{1, 8}, {2, 7}}));
  std::vector<float> first = attempted.before[1], second = counted(elements(), 2);
  const auto start = [&](Slot slot, std::vector<float>& values) {
    return world.start(slot, all_reduce_call(array_of(values), ReduceOp::sum, algorithm()));
  };
  world.run({attempted.operations[0], start(1, first), start(2, second)});
  ASSERT_EQ(error_text(*attempted.operations[0]), "");
  EXPECT_EQ(attempted.values[0], first);
  EXPECT_EQ(attempted.values[0], second);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Losses,
                         ::testing::Combine(::testing::Values(Algorithm::doubling,
                                                              Algorithm::direct, Algorithm::ring,
                                                              Algorithm::halving_doubling),
                                            ::testing::Values(size_t{1}, size_t{3000})),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

/// Rank 2 has not begun the first operation.
const std::set<TimeoutReport> rank_2_reported = {{.slot = 2, .group = 0, .sequence = 1}};

TEST(EngineFailure, AGroupThatLostNobodyGoesOnByItself) {
  EngineWorld world({.ranks = 4});
  std::vector<std::shared_ptr<Operation>> operations;
  for (const Slot slot : {Slot{0}, Slot{1}}) {
    world.engine(slot).add_group({.id = 9, .name = "pair", .slots = {0, 1}, .self = slot});
  }
  operations.push_back(world.start(0, barrier_call(), 9));
  world.poll(10);
  world.install(world.agree({3}));
  operations.push_back(world.start(1, barrier_call(), 9));
  world.run(operations);
  for (const auto& operation : operations) EXPECT_EQ(error_text(*operation), "");
}

TEST(EngineFailure, WhoDoesNotComeIsNamedOnEveryRank) {
  EngineWorld world({.ranks = 4});
  Attempted attempted(world, {0, 1, 3}, 5000);
  world.poll(10);
  world.pass(200ms);
  world.poll(10);  // they announce that they have begun
  world.pass(10s);
  world.poll(3);
  for (const Slot rank : {Slot{0}, Slot{1}, Slot{3}}) {
    EXPECT_EQ(world.control(rank).timeout_reports, rank_2_reported);
  }
  world.install(world.agree({}));
  for (const auto& operation : attempted.operations) {
    ASSERT_TRUE(operation->done());
    const auto error = failure_of<PeerTimeout>(*operation);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->facts.rank, 2u);
    EXPECT_EQ(error->facts.phase, "all_reduce 1 of group \"world\": rank 2 has not begun it");
  }
  for (const Slot rank : {Slot{0}, Slot{1}, Slot{3}}) {
    EXPECT_EQ(attempted.values[rank], attempted.before[rank]);
  }
  // The late rank gets the same error; once all have asked to recover, all is well.
  std::vector<float> late = counted(5000, 1);
  const auto operation = world.start(2, all_reduce_call(array_of(late)));
  world.poll(20);
  const auto error = failure_of<PeerTimeout>(*operation);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->facts.rank, 2u);
  Verdict verdict = world.agree({});
  verdict.recovers = true;
  world.install(verdict);
  Attempted again(world, {0, 1, 2, 3}, 5000);
  world.run(again.operations);
  for (Slot rank = 0; rank < 4; ++rank) EXPECT_EQ(again.values[rank], sum_of(again, {0, 1, 2, 3}));
}

// Ranks 0 and 1 have given the operation up when rank 2 comes, with a list that lacks parts: they
// answer its refusal with what they said when they broke.
TEST(EngineFailure, WhoRefusesDoesNotWaitForThoseWhoseOperationIsBroken) {
  EngineWorld world({.ranks = 3, .places = Places::compact});
  Attempted attempted(world, {0, 1}, 5000);
  world.poll(10);
  world.pass(200ms);
  world.poll(10);
  world.pass(10s);
  world.poll(3);
  world.install(world.agree({}));
  for (const auto& operation : attempted.operations) {
    ASSERT_TRUE(operation->done());
    EXPECT_TRUE(failure_of<PeerTimeout>(*operation));
  }
  std::vector<float> values = counted(10, 1);
  const Array array = array_of(values);
  const auto refused =
      world.start(2, {.signature = {.kind = OperationKind::all_gather, .type = array.type},
                      .in = {array},
                      .out = {array},
                      .bytes = array.bytes()});
  world.poll(50);
  ASSERT_TRUE(refused->done());
  const auto error = failure_of<InvalidArgument>(*refused);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->expected, ::testing::HasSubstr("3 parts"));
}

TEST(EngineFailure, AnAccusationNamesItsOperation) {
  EngineWorld world({.ranks = 3});
  std::vector<std::shared_ptr<Operation>> done;
  for (const Slot slot : {Slot{1}, Slot{2}}) {
    world.engine(slot).add_group({.id = 9, .name = "pair", .slots = {1, 2}, .self = slot - 1});
    done.push_back(world.start(slot, barrier_call(), 9));
  }
  world.run(done);
  world.start(1, barrier_call(), 0, 20s);  // not overdue yet
  world.start(1, barrier_call(), 9);
  world.poll(10);
  world.pass(11s);
  world.poll(3);
  const std::set<TimeoutReport> expected = {{.slot = 2, .group = 9, .sequence = 2}};
  EXPECT_EQ(world.control(1).timeout_reports, expected);
}

// It once had only the time left, which was none: the first rank to begin again blamed the others,
// which were evicted in turn.
TEST(EngineFailure, SurvivorsOfAStallHaveTheirTimeAnew) {
  EngineWorld world({.ranks = 3, .on_failure = OnFailure::exclude});
  Attempted attempted(world, {0, 1}, 5000);
  world.poll(10);
  world.pass(200ms);
  world.poll(10);
  world.pass(10s);
  world.poll(3);
  for (const Slot rank : {Slot{0}, Slot{1}}) {
    EXPECT_EQ(world.control(rank).timeout_reports, rank_2_reported);
  }
  world.install(world.agree({2}));
  world.engine(0).poll(true);
  EXPECT_EQ(world.control(0).timeout_reports, rank_2_reported);
  world.run(attempted.operations);
  for (const Slot rank : {Slot{0}, Slot{1}}) {
    EXPECT_EQ(attempted.values[rank], sum_of(attempted, {0, 1}));
  }
}

/// Ranks 0 and 1 have waited until their time was up, and rank 2 has just come.
struct LastComesLate {
  EngineWorld world{{.ranks = 3, .ring_bytes = 2000, .chunk_bytes = 512}};
  Attempted attempted{world, {0, 1}, 5000, Algorithm::ring};
  std::optional<Attempted> late;

  LastComesLate() {
    world.poll(10);
    world.pass(10s);
    world.poll(10);
    late.emplace(world, std::vector<Slot>{2}, 5000, Algorithm::ring);
    world.poll(3);
  }
};

// They were once blamed in its place: each by the rank that waited for its part of work that could
// begin only once the last rank had come.
TEST(EngineFailure, WhoWaitsWithTheOthersIsNotBlamedWhenTheLastHasJustCome) {
  LastComesLate scene;
  EngineWorld& world = scene.world;
  world.pass(60ms);
  world.poll(3);
  for (Slot rank = 0; rank < 3; ++rank)
    EXPECT_EQ(world.control(rank).timeout_reports, std::set<TimeoutReport>{});
  world.run(
      {scene.attempted.operations[0], scene.attempted.operations[1], scene.late->operations[0]});
  EXPECT_EQ(scene.late->values[2], scene.attempted.values[0]);
}

TEST(EngineFailure, WhoComesLateAndStallsIsBlamedSoon) {
  LastComesLate scene;
  EngineWorld& world = scene.world;
  world.stop(2);
  world.pass(100ms);
  world.poll(1);
  EXPECT_EQ(world.control(0).timeout_reports, rank_2_reported);
}

TEST(EngineFailure, WhatFailedBeforeAnEpochThatMendsIsNotToldInIt) {
  EngineWorld world({.ranks = 3});
  Attempted attempted(world, {0, 1}, 5000);
  world.poll(10);
  world.pass(11s);
  world.poll(3);
  world.install(world.agree({}));
  EXPECT_TRUE(failure_of<PeerTimeout>(*attempted.operations[0]));
  // Rank 2 has called nothing, and has heard of nothing.
  Verdict verdict = world.agree({});
  verdict.recovers = true;
  world.install(verdict);
  Attempted again(world, {0, 1, 2}, 5000);
  world.run(again.operations);
  for (Slot rank = 0; rank < 3; ++rank) EXPECT_EQ(again.values[rank], sum_of(again, {0, 1, 2}));
}

// So a later failure is new, and may be reported in that epoch.
TEST(EngineFailure, WhatIsUnderWayHasItsTimeAnewWhereAnEpochMends) {
  EngineWorld world({.ranks = 3});
  Attempted attempted(world, {0, 1}, 5000);
  world.pass(9s);
  world.poll(1);
  Verdict verdict = world.agree({});
  verdict.recovers = true;
  world.install(verdict);
  world.pass(9s);
  world.poll(20);
  for (const auto& operation : attempted.operations) EXPECT_FALSE(operation->done());
  world.pass(2s);
  world.poll(20);
  world.install(world.agree({}));
  for (const auto& operation : attempted.operations)
    EXPECT_TRUE(failure_of<PeerTimeout>(*operation));
}

// All have put the failure behind them, so its caller must not wait for them to do so again.
TEST(EngineFailure, WhatLacksItsRootWhereAnEpochMendsFailsForTheEpochBefore) {
  EngineWorld world({.ranks = 3});
  std::vector<float> values(10);
  const auto broadcast = world.start(0, broadcast_call(array_of(values), 2));
  world.poll(10);
  Verdict verdict = world.agree({2});
  verdict.recovers = true;
  world.install(verdict);
  world.run({broadcast});
  const auto aborted = failure_of<OperationAborted>(*broadcast);
  EXPECT_EQ(aborted->lost, std::vector<uint32_t>{2});
  EXPECT_LT(aborted->epoch, world.engine(0).recovered().epoch);
}

TEST(EngineFailure, ARepairDoesNotReachIntoLaterEpochs) {
  EngineWorld world({.ranks = 4});
  world.install(world.agree({3}));
  world.install(world.agree({2}));
  world.engine(0).repair(2);
  EXPECT_TRUE(failure_of<OperationAborted>(*world.start(0, barrier_call())));
  world.engine(0).repair(3);
  EXPECT_FALSE(world.start(0, barrier_call())->done());
}

TEST(EngineFailure, WithoutAQuorumADeadlineSaysSo) {
  EngineWorld world({.ranks = 3});
  Attempted attempted(world, {0}, 10);
  world.engine(0).quorum_missing({0}, 2);
  world.pass(11s);
  world.poll(1);
  const auto error = failure_of<QuorumLost>(*attempted.operations[0]);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->needed, 2u);
  EXPECT_EQ(attempted.values[0], attempted.before[0]);
}

TEST(EngineFailure, FencedMeansForGood) {
  EngineWorld world({.ranks = 2});
  Attempted attempted(world, {0}, 10000);
  world.poll(5);
  world.engine(0).fenced(3, "it was silent");
  ASSERT_TRUE(attempted.operations[0]->done());
  EXPECT_TRUE(failure_of<tokenyard::Fenced>(*attempted.operations[0]));
  EXPECT_EQ(attempted.values[0], attempted.before[0]);
  EXPECT_TRUE(failure_of<tokenyard::Fenced>(*world.start(0, barrier_call())));
}

}  // namespace
}  // namespace tokenyard::collectives::testing
