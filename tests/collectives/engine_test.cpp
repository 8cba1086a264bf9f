#include <fmt/format.h>
#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

using Operations = std::vector<std::shared_ptr<Operation>>;

TEST(Engine, BarrierEnds) {
  for (uint32_t ranks = 1; ranks <= 6; ++ranks) {
    EngineWorld world({.ranks = ranks});
    Operations operations;
    for (Slot slot = 0; slot < ranks; ++slot)
      operations.push_back(world.start(slot, barrier_call()));
    world.run(operations);
    for (const auto& operation : operations) EXPECT_EQ(error_text(*operation), "");
  }
}

TEST(Engine, BarrierWaitsForTheLast) {
  EngineWorld world({.ranks = 3});
  Operations operations = {world.start(0, barrier_call()), world.start(1, barrier_call())};
  world.poll(100);
  EXPECT_FALSE(operations[0]->done());
  EXPECT_FALSE(operations[1]->done());
  operations.push_back(world.start(2, barrier_call()));
  world.run(operations);
}

TEST(Engine, OperationsOfAGroupFollowOneAnother) {
  EngineWorld world({.ranks = 3});
  std::vector<std::vector<float>> values(3 * 5);
  Operations operations;
  for (int index = 0; index < 5; ++index) {
    for (Slot slot = 0; slot < 3; ++slot) {
      std::vector<float>& mine = values[index * 3 + slot];
      mine.assign(1 + index * 1000, static_cast<float>(slot + index));
      operations.push_back(world.start(slot, all_reduce_call(array_of(mine))));
    }
  }
  world.run(operations);
  for (int index = 0; index < 5; ++index) {
    const std::vector<float> expected(1 + index * 1000, static_cast<float>(3 + 3 * index));
    for (Slot slot = 0; slot < 3; ++slot) EXPECT_EQ(values[index * 3 + slot], expected);
  }
}

TEST(Engine, CallsThatDifferFailOnAllRanks) {
  for (uint32_t ranks = 2; ranks <= 5; ++ranks) {
    for (const size_t elements : {size_t{1}, size_t{100000}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} elements", ranks, elements));
      EngineWorld world({.ranks = ranks});
      std::vector<std::vector<float>> values(ranks, std::vector<float>(elements, 1));
      Operations operations;
      for (Slot slot = 0; slot + 1 < ranks; ++slot) {
        operations.push_back(world.start(slot, all_reduce_call(array_of(values[slot]))));
      }
      operations.push_back(world.start(ranks - 1, broadcast_call(array_of(values[ranks - 1]), 0)));
      world.run(operations);
      for (const auto& operation : operations) {
        const auto error = failure_of<InvalidArgument>(*operation);
        ASSERT_TRUE(error);
        EXPECT_THAT(error->what(), ::testing::HasSubstr("all_reduce(sum, float32["));
        EXPECT_THAT(error->what(), ::testing::HasSubstr("broadcast(float32["));
        EXPECT_THAT(error->what(), ::testing::HasSubstr("operation 1 of group \"world\""));
      }
      for (const auto& mine : values) EXPECT_EQ(mine, std::vector<float>(elements, 1));
      // The group goes on.
      Operations next;
      for (Slot slot = 0; slot < ranks; ++slot) {
        next.push_back(world.start(slot, all_reduce_call(array_of(values[slot]))));
      }
      world.run(next);
      for (const auto& mine : values) EXPECT_EQ(mine[0], static_cast<float>(ranks));
    }
  }
}

/// Ranks are polled in an order drawn from a seed, over rings that fill soon: some have finished an
/// operation and hear the next one refused, while others are in the middle of it.
class Refusals : public ::testing::TestWithParam<Places> {};
TEST_P(Refusals, DoNotReachIntoTheOperationBefore) {
  constexpr uint32_t ranks = 4;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937 draw(seed);
    EngineWorld world({.ranks = ranks, .ring_bytes = 256, .places = GetParam()});
    std::vector<std::vector<float>> sums(ranks, std::vector<float>(500, 1)), parts = sums;
    Operations first, wrong, last;
    for (Slot slot = 0; slot < ranks; ++slot) {
      first.push_back(world.start(slot, all_reduce_call(array_of(sums[slot]))));
      Call call = barrier_call();
      if (GetParam() == Places::compact) {
        const Array array = array_of(parts[slot]);
        call = {.signature = {.kind = OperationKind::all_gather, .type = array.type},
                .in = {array},
                .out = {array},
                .bytes = array.bytes()};
      } else if (slot == 1) {
        call = all_reduce_call(array_of(parts[slot]));
      }
      wrong.push_back(world.start(slot, std::move(call)));
      last.push_back(world.start(slot, barrier_call()));
    }
    const auto done = [](const auto& operation) { return operation->done(); };
    for (int round = 0; !std::all_of(last.begin(), last.end(), done) && round < 100000; ++round) {
      world.pass(std::chrono::microseconds(draw() % 300));
      for (int times = 0; times < 3; ++times)
        world.engine(draw() % 2 ? 0 : draw() % ranks).poll(true);
    }
    for (Slot slot = 0; slot < ranks; ++slot) {
      EXPECT_EQ(error_text(*first[slot]), "");
      EXPECT_EQ(sums[slot], std::vector<float>(500, ranks));
      EXPECT_THAT(error_text(*wrong[slot]), ::testing::HasSubstr("operation 2 of group"));
      EXPECT_TRUE(last[slot]->done());
      EXPECT_EQ(error_text(*last[slot]), "");
    }
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Places, Refusals, ::testing::Values(Places::kept, Places::compact),
                         [](const auto& info) {
                           return info.param == Places::kept ? "kept" : "compact";
                         });

TEST(Engine, LengthsThatDifferAreNamed) {
  EngineWorld world({.ranks = 2});
  std::vector<float> one(3, 1), other(4, 1);
  const Operations operations = {world.start(0, all_reduce_call(array_of(one))),
                                 world.start(1, all_reduce_call(array_of(other)))};
  world.run(operations);
  EXPECT_EQ(
      error_text(*operations[0]),
      "operation 1 of group \"world\" on rank 1: expected all_reduce(sum, float32[3]) on rank "
      "0, got all_reduce(sum, float32[4]) on rank 1");
  EXPECT_EQ(
      error_text(*operations[1]),
      "operation 1 of group \"world\" on rank 0: expected all_reduce(sum, float32[4]) on rank "
      "1, got all_reduce(sum, float32[3]) on rank 0");
}

// A polling thread sleeps when nothing moves, and a large frame takes many steps.
TEST(Engine, SaysThatAFrameMovesBeforeAllOfItIsThere) {
  EngineWorld world({.ranks = 2, .ring_bytes = 4 << 10, .chunk_bytes = 64 << 10});
  std::vector<float> root(16 << 10, 1), other(16 << 10, 0);
  const Operations operations = {world.start(0, broadcast_call(array_of(root), 0)),
                                 world.start(1, broadcast_call(array_of(other), 0))};
  for (int step = 0; step < 8; ++step) {
    EXPECT_TRUE(world.engine(0).poll(true)) << step;
    EXPECT_FALSE(world.engine(0).poll(true)) << "there is no more room: " << step;
    EXPECT_TRUE(world.engine(1).poll(true)) << step;
    EXPECT_FALSE(world.engine(1).poll(true)) << "the other end has sent nothing more: " << step;
  }
  world.run(operations);
  EXPECT_EQ(other, root);
}

}  // namespace
}  // namespace tokenyard::collectives::testing
