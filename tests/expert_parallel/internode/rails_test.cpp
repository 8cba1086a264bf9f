/// Dispatch and combine between hosts, checked bit for bit.
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class BetweenHosts : public testing::Test {
 protected:
  static WorldOptions options(uint32_t hosts) {
    return {.timeout = std::chrono::seconds(60), .arena_bytes = size_t{64} << 20, .hosts = hosts};
  }
  static Outcomes run(uint32_t hosts, uint32_t ranks, const Body& body) {
    return run_ranks(World::in_process(ranks, "host", options(hosts)), body);
  }
  static void check(uint32_t hosts, const ExchangeCase& exchange_case) {
    expect_none_failed(run(hosts, exchange_case.shape.ranks, [&](World& world) {
      EXPECT_EQ(difference_after_exchange(world, exchange_case), "");
    }));
  }
  static ExchangeCase some_tokens(uint32_t ranks) {
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(5 + 7 * rank % 23);
    return {.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 64, .topk = 4},
            .tokens = tokens,
            .picking = {.none = 0.1},
            .sms = 2};
  }
};

TEST_F(BetweenHosts, EveryNumberOfHostsAndRanks) {
  for (const auto& [hosts, each] :
       {std::pair{2u, 1u}, {2u, 2u}, {2u, 3u}, {3u, 1u}, {3u, 2u}, {4u, 2u}}) {
    SCOPED_TRACE(testing::Message() << hosts << " hosts of " << each);
    check(hosts, some_tokens(hosts * each));
  }
}

TEST_F(BetweenHosts, ManyMoreTokensThanARingHasSlots) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {150, 0, 97, 1};
  exchange_case.sms = 3;
  check(2, exchange_case);
}

TEST_F(BetweenHosts, NoTokensAtAll) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {0, 0, 0, 0};
  check(2, exchange_case);
}

TEST_F(BetweenHosts, AllTokensToOneExpert) {
  ExchangeCase exchange_case = some_tokens(6);
  exchange_case.picking = {.one_expert = true};
  check(3, exchange_case);
}

TEST_F(BetweenHosts, ExpertsThatTheRanksDoNotDivide) {
  for (const uint32_t experts : {3u, 7u, 13u}) {
    SCOPED_TRACE(experts);
    ExchangeCase exchange_case = some_tokens(4);
    exchange_case.shape.experts = experts;
    exchange_case.shape.topk = 3;
    check(2, exchange_case);
  }
}

TEST_F(BetweenHosts, ManyChoices) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.shape.experts = 80;
  exchange_case.shape.topk = 40;
  exchange_case.idx_is_int64 = false;
  check(2, exchange_case);
}

/// Several calls on one object: each begins where the rings of the one before ended, and rows of
/// other formats cut them into other slots.
TEST_F(BetweenHosts, CallsFollowOneAnother) {
  ExchangeCase exchange_case = some_tokens(4);
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    for (uint32_t call = 0; call < 4; ++call) {
      ExchangeCase fresh = exchange_case;
      fresh.seed = call + 1;
      const std::vector<Tokens> all = fresh.draw();
      const Expected expected = expected_on(fresh.shape, all, world.rank());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      DispatchInput again = tokens.input();
      again.topk_idx = again.topk_weights = {};
      const Received repeated = exchange.dispatch(again, *received.route);
      EXPECT_EQ(difference(exchange, repeated, expected), "");
      EXPECT_EQ(difference_after_combine(exchange, received, fresh.shape, all[world.rank()],
                                         expected, {.with_weights = call % 2 == 0, .call = call}),
                "");
    }
  }));
}

TEST_F(BetweenHosts, ABadIdIsNamedOnAllRanksAndTheObjectWorksOn) {
  const ExchangeCase exchange_case = some_tokens(4);
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    Tokens mine = all[world.rank()];
    if (world.rank() == 2) mine.ids[5] = 999;
    const TokensOnDevice bad(accelerator_of(world), mine, true);
    try {
      exchange.dispatch(bad.input());
      ADD_FAILURE() << "rank " << world.rank() << " has accepted it";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.rank, 2u);
      EXPECT_NE(std::string(error.what()).find("expert 999 in token 1"), std::string::npos)
          << error.what();
    }
    const TokensOnDevice good(accelerator_of(world), all[world.rank()], true);
    EXPECT_EQ(difference(exchange, exchange.dispatch(good.input()),
                         expected_on(exchange_case.shape, all, world.rank())),
              "");
  }));
}

TEST_F(BetweenHosts, DifferentCallsAreNamedOnAllRanks) {
  const ExchangeCase exchange_case = some_tokens(4);
  const Outcomes outcomes = run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    if (world.rank() == 3) {
      exchange.dispatch(tokens.input());
    } else {
      DeviceArray<uint16_t> out(accelerator_of(world), all[world.rank()].x.size());
      exchange.combine({.y = received.x}, *received.route, {.x = out.bf16_rows(64)});
    }
    exchange.wait();
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(error_of<InvalidArgument>(outcome).rank, 3u);
}

TEST_F(BetweenHosts, ASilentRankIsNamedWithItsHostAndRail) {
  ExchangeCase exchange_case = some_tokens(4);
  auto worlds = World::in_process(
      4, "host", {.timeout = std::chrono::seconds(3), .arena_bytes = size_t{64} << 20, .hosts = 2});
  const Outcomes outcomes = run_ranks(worlds, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    if (world.rank() != 3) exchange.dispatch(tokens.input());
  });
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto error = error_of<PeerTimeout>(outcomes[rank]);
    EXPECT_EQ(error.facts.rank, 3u) << error.what();
    EXPECT_NE(error.facts.phase.find("(host 1, rail 1)"), std::string::npos) << error.what();
  }
}

TEST_F(BetweenHosts, RefusesWhatItCannotDoWhenTheCallIsMade) {
  const ExchangeCase exchange_case = some_tokens(2);
  expect_none_failed(run(2, 2, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = 1;
    EXPECT_THROW(exchange.dispatch(input), Unsupported);
    input.received_tokens_max = 0;
    input.watcher = Stream{};
    EXPECT_THROW(exchange.dispatch(input), Unsupported);
    EXPECT_EQ(difference(exchange, exchange.dispatch(tokens.input()),
                         expected_on(exchange_case.shape, all, world.rank())),
              "");
  }));
}

}  // namespace
}  // namespace tokenyard::test
