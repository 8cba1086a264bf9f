/// Dispatch and combine on every kind of shape, checked bit for bit.
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class Exchange : public OnDevice {
 protected:
  void check(const ExchangeCase& exchange_case) {
    const auto all = worlds(exchange_case.shape.ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      EXPECT_EQ(difference_after_exchange(world, exchange_case), "");
    }));
  }
};

TEST_P(Exchange, WorksForEveryNumberOfRanks) {
  for (const uint32_t ranks : {1, 2, 3, 4, 5, 8, 16}) {
    SCOPED_TRACE(ranks);
    if (GetParam() == "cuda" && ranks > 8) continue;  // More blocks than fit on a GPU.
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(7 + 5 * rank % 13);
    check({.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 64, .topk = 4},
           .tokens = tokens,
           .picking = {.none = 0.1},
           .sms = 2});
  }
}

TEST_P(Exchange, WorksForEveryWidthOfARow) {
  for (const uint32_t hidden : {8, 16, 24, 256, 7168}) {
    SCOPED_TRACE(hidden);
    check(
        {.shape = {.ranks = 3, .experts = 12, .hidden = hidden, .topk = 3}, .tokens = {9, 4, 17}});
  }
}

TEST_P(Exchange, MovesRowsLargerThanAStageInSegments) {
  check({.shape = {.ranks = 2, .experts = 4, .hidden = 100'000, .topk = 2}, .tokens = {5, 3}});
}

TEST_P(Exchange, WorksForEveryNumberOfPicks) {
  for (const uint32_t topk : {1, 2, 5, 8, 31, 32, 33, 64, 100, 256}) {
    SCOPED_TRACE(topk);
    check({.shape = {.ranks = 4, .experts = std::max(64u, topk), .hidden = 32, .topk = topk},
           .tokens = {10, 11, 0, 40},
           .picking = {.none = 0.2}});
  }
}

/// Every remainder, and fewer experts than ranks, so that the last ranks hold none.
TEST_P(Exchange, WorksForExpertsThatTheRanksDoNotDivide) {
  for (const auto& [ranks, experts] : {std::pair{3u, 8u},
                                       {2u, 5u},
                                       {4u, 9u},
                                       {4u, 10u},
                                       {4u, 11u},
                                       {5u, 3u},
                                       {3u, 1u},
                                       {3u, 256u}}) {
    SCOPED_TRACE(fmt::format("{} experts on {} ranks", experts, ranks));
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(9 + 4 * rank);
    for (const uint32_t topk : {1u, std::min(experts, 4u), std::min(experts, 70u)})
      check({.shape = {.ranks = ranks, .experts = experts, .hidden = 32, .topk = topk},
             .tokens = tokens,
             .picking = {.none = 0.1}});
  }
}

/// On ranks that give no weights, every choice has weight 1.
TEST_P(Exchange, WeightsMayBeLeftOut) {
  const ExchangeCase given{.shape = {}, .tokens = {9, 4, 0, 17}, .picking = {.none = 0.2}};
  const auto all = worlds(4);
  expect_none_failed(run_ranks(all, [&](World& world) {
    const std::vector<Tokens> as_given = given.draw();
    std::vector<Tokens> tokens_of = as_given;
    for (const uint32_t rank : {0, 3})
      for (float& weight : tokens_of[rank].weights) weight = 1;
    ExpertParallel exchange(world, given.options());
    const TokensOnDevice tokens(accelerator_of(world), as_given[world.rank()], true);
    DispatchInput input = tokens.input();
    if (world.rank() % 3 == 0) input.topk_weights = {};
    const Received received = exchange.dispatch(input);
    const Expected expected = expected_on(given.shape, tokens_of, world.rank());
    EXPECT_EQ(difference(exchange, received, expected), "");
    EXPECT_EQ(difference_after_combine(exchange, received, given.shape, tokens_of[world.rank()],
                                       expected, {.in_place = true, .with_weights = true}),
              "");
  }));
}

TEST_P(Exchange, TakesIdsOfEitherWidth) {
  for (const bool idx_is_int64 : {false, true})
    check({.shape = {},
           .tokens = {6, 6, 6, 6},
           .picking = {.none = 0.3},
           .idx_is_int64 = idx_is_int64});
}

TEST_P(Exchange, SomeRanksMayHaveNoTokens) {
  check({.shape = {}, .tokens = {0, 12, 0, 3}});
}

TEST_P(Exchange, NobodyNeedsToHaveTokens) {
  check({.shape = {}, .tokens = {0, 0, 0, 0}});
}

TEST_P(Exchange, TokensMayGoNowhere) {
  check({.shape = {}, .tokens = {5, 6, 7, 8}, .picking = {.none = 1.0}});
}

TEST_P(Exchange, AllTokensMayGoToOneExpert) {
  check({.shape = {}, .tokens = {30, 31, 32, 33}, .picking = {.one_expert = true}});
}

TEST_P(Exchange, MoreTokensThanARingHasStages) {
  check({.shape = {.ranks = 4, .experts = 8, .hidden = 128, .topk = 2},
         .tokens = {300, 200, 257, 400},
         .picking = {.none = 0.4}});
}

INSTANTIATE_ON_DEVICES(Exchange);

}  // namespace
}  // namespace tokenyard::test
