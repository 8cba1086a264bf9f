/// Ranks that do not answer: the others name the rank and the phase, and none of their calls hangs.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

const ExchangeCase kCase{.shape = {.ranks = 3, .experts = 6, .hidden = 16, .topk = 2},
                         .tokens = {8, 9, 10}};

/// Warps of one block wait for both at once.
const auto kFirstPhase = ::testing::AnyOf("dispatch: ready word", "dispatch: counts");

/// Long enough for everything that does not wait for an absent rank, even on a busy machine.
constexpr std::chrono::seconds kTimeout{2};

std::vector<std::unique_ptr<World>> impatient_worlds() {
  return World::in_process(3, "host", {.timeout = kTimeout, .arena_bytes = size_t{64} << 20});
}

TEST(Failure, ARankThatNeverDispatchesIsNamed) {
  const auto worlds = impatient_worlds();
  const std::vector<Tokens> all = kCase.draw();
  const auto outcomes = run_ranks(worlds, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    if (world.rank() == 2) return;
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    exchange.dispatch(tokens.input());
  });
  EXPECT_FALSE(outcomes[2]);
  for (const uint32_t rank : {0, 1}) {
    const auto error = error_of<PeerTimeout>(outcomes[rank]);
    EXPECT_EQ(error.facts.rank, 2u);
    EXPECT_THAT(error.facts.phase, kFirstPhase);
    EXPECT_GE(error.facts.waited_s, kTimeout.count());
  }
}

TEST(Failure, ARankThatNeverCombinesIsNamed) {
  const auto worlds = impatient_worlds();
  const std::vector<Tokens> all = kCase.draw();
  const auto outcomes = run_ranks(worlds, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    if (world.rank() == 0) return;
    DeviceArray<uint16_t> out(accelerator_of(world), all[world.rank()].x.size());
    exchange.combine({.y = received.x}, *received.route,
                     {.x = out.bf16_rows(exchange.options().hidden)});
    exchange.wait();
  });
  EXPECT_FALSE(outcomes[0]);
  for (const uint32_t rank : {1, 2}) {
    const auto error = error_of<PeerTimeout>(outcomes[rank]);
    EXPECT_EQ(error.facts.rank, 0u);
    EXPECT_EQ(error.facts.phase, "combine: ready word");
  }
}

/// After a failure the object keeps raising it, and its memory stays unused.
TEST(Failure, AFailedObjectStaysFailedAndKeepsItsMemory) {
  const auto worlds = impatient_worlds();
  const std::vector<Tokens> all = kCase.draw();
  const auto outcomes = run_ranks(worlds, [&](World& world) {
    if (world.rank() == 2) {
      ExpertParallel exchange(world, kCase.options());
      return;
    }
    const size_t before = arena_of(world).used();
    {
      ExpertParallel exchange(world, kCase.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      EXPECT_TRUE(exchange.failed_ranks().empty());
      for (int i = 0; i < 3; ++i) EXPECT_THROW(exchange.dispatch(tokens.input()), PeerTimeout);
      EXPECT_THROW(exchange.check(), PeerTimeout);
      const std::vector<FailedRank> failed = exchange.failed_ranks();
      ASSERT_EQ(failed.size(), 1u);
      EXPECT_EQ(failed[0].rank, 2u);
      EXPECT_EQ(failed[0].why, FailedRank::Why::timeout);
      EXPECT_THAT(failed[0].phase, kFirstPhase);
      EXPECT_GE(failed[0].waited_s, kTimeout.count());
      EXPECT_THAT(failed[0].text, ::testing::StartsWith("rank 2 did not answer in phase"));
    }
    EXPECT_GT(arena_of(world).used(), before);
  });
  expect_none_failed(outcomes);
}

TEST(Failure, CancelEndsAWaitingDispatch) {
  constexpr std::chrono::seconds kForEver{60};
  // Every wait calls `interrupt` now and then, which shows that rank 0's dispatch is waiting.
  std::atomic<bool> dispatching = false, waiting = false;
  auto worlds = World::in_process(
      2, "host", {.timeout = kForEver, .arena_bytes = size_t{16} << 20, .interrupt = [&] {
                    if (dispatching) waiting = true;
                  }});
  ExchangeCase two = kCase;
  two.shape.ranks = 2;
  two.tokens = {4, 4};
  const std::vector<Tokens> all = two.draw();
  const auto outcomes = run_ranks(worlds, [&](World& world) {
    ExpertParallel exchange(world, two.options());
    if (world.rank() == 1) {
      const auto until = std::chrono::steady_clock::now() + kForEver / 2;
      while (!waiting && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      worlds[0]->cancel();
      return;
    }
    const TokensOnDevice tokens(accelerator_of(world), all[0], true);
    dispatching = true;
    exchange.dispatch(tokens.input());
  });
  EXPECT_TRUE(waiting);
  EXPECT_THAT(error_of<Cancelled>(outcomes[0]).phase, kFirstPhase);
}

}  // namespace
}  // namespace tokenyard::test
