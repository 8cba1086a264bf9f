/// Reused routes, several objects in one world, memory, determinism.
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class Routes : public OnDevice {};

const ExchangeCase kCase{.shape = {.ranks = 4, .experts = 16, .hidden = 72, .topk = 4},
                         .tokens = {20, 33, 0, 14},
                         .picking = {.none = 0.2}};

TEST_P(Routes, CanBeUsedAgainWithOtherRows) {
  const auto all = worlds(4);
  const std::vector<Tokens> first = kCase.draw();
  std::vector<Tokens> second = first;
  for (Tokens& tokens : second)
    for (uint16_t& value : tokens.x) value ^= 0x155;
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), first[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    const Expected expected = expected_on(kCase.shape, first, world.rank());
    const Expected expected_again = expected_on(kCase.shape, second, world.rank());
    const DeviceArray<uint16_t> x(accelerator_of(world), second[world.rank()].x);
    for (int i = 0; i < 3; ++i) {
      const Received again =
          exchange.dispatch({.x = x.bf16_rows(exchange.options().hidden)}, *received.route);
      EXPECT_EQ(difference(exchange, again, expected_again), "");
      EXPECT_EQ(
          difference_after_combine(exchange, again, kCase.shape, first[world.rank()], expected, {}),
          "");
    }
    EXPECT_EQ(difference(exchange, received, expected), "");  // Untouched by the later calls.
  }));
}

TEST_P(Routes, OlderOnesStayValidBesideNewerOnes) {
  const auto all = worlds(4);
  ExchangeCase other = kCase;
  other.seed = 2;
  const std::vector<Tokens> first = kCase.draw(), second = other.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), first[world.rank()], true);
    const TokensOnDevice others(accelerator_of(world), second[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    const Received newer = exchange.dispatch(others.input());
    const Expected expected = expected_on(kCase.shape, first, world.rank());
    const Expected expected_newer = expected_on(kCase.shape, second, world.rank());
    EXPECT_EQ(difference_after_combine(exchange, received, kCase.shape, first[world.rank()],
                                       expected, {}),
              "");
    EXPECT_EQ(difference_after_combine(exchange, newer, kCase.shape, second[world.rank()],
                                       expected_newer, {}),
              "");
    EXPECT_EQ(difference(exchange, received, expected), "");
    EXPECT_EQ(difference(exchange, newer, expected_newer), "");
  }));
}

/// The reference has no blocks, so equality with it for each number means mutual equality.
TEST_P(Routes, DoNotDependOnTheNumberOfBlocks) {
  for (const uint32_t sms : {1, 2, 3, 5}) {
    const auto all = worlds(4);
    ExchangeCase with_sms = kCase;
    with_sms.sms = sms;
    expect_none_failed(run_ranks(
        all, [&](World& world) { EXPECT_EQ(difference_after_exchange(world, with_sms), ""); }));
  }
}

TEST_P(Routes, RanksMayRunDifferentNumbersOfBlocks) {
  const auto all = worlds(4);
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU run one grid";
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExchangeCase mine = kCase;
    mine.sms = 1 + world.rank();
    EXPECT_EQ(difference_after_exchange(world, mine), "");
  }));
}

TEST_P(Routes, ObjectsOfOneWorldDoNotDisturbEachOther) {
  const auto all = worlds(4);
  ExchangeCase other{.shape = {.ranks = 4, .experts = 8, .hidden = 40, .topk = 2},
                     .tokens = {3, 50, 9, 9}};
  const std::vector<Tokens> first = kCase.draw(), second = other.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    ExpertParallel another(world, other.options());
    const TokensOnDevice tokens(accelerator_of(world), first[world.rank()], true);
    const TokensOnDevice others(accelerator_of(world), second[world.rank()], true);
    for (int i = 0; i < 2; ++i) {
      const Received received = exchange.dispatch(tokens.input());
      const Received from_another = another.dispatch(others.input());
      const Expected expected = expected_on(kCase.shape, first, world.rank());
      EXPECT_EQ(difference(another, from_another, expected_on(other.shape, second, world.rank())),
                "");
      EXPECT_EQ(difference_after_combine(exchange, received, kCase.shape, first[world.rank()],
                                         expected, {}),
                "");
      EXPECT_EQ(difference(exchange, received, expected), "");
    }
  }));
}

TEST_P(Routes, MemoryComesBackWithTheLastOwner) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    const size_t before = arena_of(world).used();
    {
      ExpertParallel exchange(world, kCase.options());
      const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
      const size_t idle = arena_of(world).used();
      for (int i = 0; i < 5; ++i) {
        std::optional<Received> received = exchange.dispatch(tokens.input());
        EXPECT_GT(arena_of(world).used(), idle);
        exchange.wait();
        const std::optional<Route> route = received->route;
        received.reset();
        EXPECT_GT(arena_of(world).used(), idle);  // A combine on the route is still possible.
      }
      exchange.wait();
      EXPECT_EQ(arena_of(world).used(), idle);
    }
    EXPECT_EQ(arena_of(world).used(), before);
  }));
}

TEST_P(Routes, BoundsAreTrimmedToWhatCame) {
  const auto all = worlds(4);
  ExchangeCase few = kCase;
  few.tokens = {1, 1, 1, 1};
  ExpertParallelOptions options = few.options();
  options.tokens_max = 4096;
  const std::vector<Tokens> tokens_of = few.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, options);
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    const size_t bound = size_t{4} * 4096 * options.hidden * 2;
    const size_t idle = arena_of(world).used();
    const Received received = exchange.dispatch(tokens.input());
    exchange.wait();
    EXPECT_GE(arena_of(world).peak(), bound);
    EXPECT_LT(arena_of(world).used() - idle, bound);
    EXPECT_EQ(difference(exchange, received, expected_on(few.shape, tokens_of, world.rank())), "");
  }));
}

INSTANTIATE_ON_DEVICES(Routes);

}  // namespace
}  // namespace tokenyard::test
