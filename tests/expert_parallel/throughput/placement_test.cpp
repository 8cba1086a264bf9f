/// Expert maps: several places for a hot expert, unequal ranks.
#include <numeric>

#include "expert_parallel/mapped.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_map.hpp"

namespace tokenyard::test {
namespace {

class Placement : public OnDevice {};

// 3 ranks of 4 places for 7 experts: expert 2 has three places, expert 5 two, and two are empty.
const std::vector<int32_t> kExpertAt{2, 0, 5, -1, 1, 2, 3, 4, 6, 5, 2, -1};
constexpr uint32_t kExperts = 7;
const ExchangeCase kCase{.shape = {.ranks = 3, .experts = 12, .hidden = 40, .topk = 3},
                         .tokens = {30, 0, 21}};
ExpertParallelOptions options_of_case() {
  ExpertParallelOptions options = kCase.options();
  options.experts = kExperts;
  options.places_per_rank = 4;
  return options;
}

// 3 ranks of 38, 37 and 37 places for 60 experts, most of which have two; more choices than a warp
// has lanes.
const ExchangeCase kUneven{.shape = {.ranks = 3, .experts = 112, .hidden = 40, .topk = 40},
                           .tokens = {9, 0, 14}};
std::vector<int32_t> uneven_places() {
  std::vector<int32_t> expert_at;
  for (int32_t place = 0; place < 112; ++place)
    expert_at.push_back(place % 16 == 3 ? -1 : place * 7 % 60);
  return expert_at;
}

/// Tokens that choose experts, and the same tokens by place.
struct Placed {
  std::vector<Tokens> given, by_place;
};

Placed draw(const ExchangeCase& of = kCase, const std::vector<int32_t>& expert_at = kExpertAt,
            uint32_t experts = kExperts) {
  const Mapped map{.experts = experts, .expert_at = expert_at, .without = {}};
  std::mt19937 random(3);
  Placed placed;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    placed.given.push_back(
        random_tokens(map.named(of.shape), of.tokens[rank], {.none = 0.2}, random));
    placed.by_place.push_back(map.placed(of.shape, placed.given[rank], rank));
  }
  return placed;
}

std::vector<int32_t> lost_of(const Tokens& by_place, uint32_t topk) {
  std::vector<int32_t> lost(by_place.count);
  for (size_t i = 0; i < by_place.ids.size(); ++i)
    lost[i / topk] += by_place.ids[i] == kLostChoice ? 1 : 0;
  return lost;
}

TEST_P(Placement, TokensGoToThePlacesOfTheirExperts) {
  const auto all = worlds(3);
  const Placed tokens_of = draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, options_of_case());
    exchange.set_expert_map(kExpertAt);
    const Expected expected = expected_on(kCase.shape, tokens_of.by_place, world.rank());
    for (const bool idx_is_int64 : {false, true}) {
      const TokensOnDevice tokens(accelerator_of(world), tokens_of.given[world.rank()],
                                  idx_is_int64);
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      EXPECT_EQ(difference_after_combine(exchange, received, kCase.shape,
                                         tokens_of.by_place[world.rank()], expected,
                                         {.in_place = false, .with_weights = true}),
                "");
    }
  }));
}

/// Without a map and without spare places no kernel replaces ids.
TEST_P(Placement, AnEmptyMapPutsExpertsAtTheirNumbers) {
  const auto all = worlds(3);
  const Placed tokens_of = draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    exchange.set_expert_map(kExpertAt);
    exchange.set_expert_map({});
    const Expected expected = expected_on(kCase.shape, tokens_of.by_place, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of.by_place[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference(exchange, received, expected), "");
    EXPECT_FALSE(received.lost.given());
  }));
}

TEST_P(Placement, ChoicesWithoutAPlaceCountAsNoneAndAreCounted) {
  const auto all = worlds(3);
  const std::vector<int32_t> expert_at = spread_lost_experts(
      std::vector<int32_t>{2, 0, 5, -1, 1, 4, 3, 0, 6, 5, 2, 4}, {true, false, true});
  EXPECT_EQ(expert_at, (std::vector<int32_t>{2, 0, 5, 1, -1, -1, -1, -1, 6, 5, 2, 4}));
  const Placed tokens_of = draw(kCase, expert_at);
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, options_of_case());
    std::vector<std::vector<int32_t>> told;
    exchange.on_experts_changed([&](const std::vector<int32_t>& held) { told.push_back(held); });
    exchange.set_expert_map(expert_at);
    EXPECT_EQ(told, (std::vector<std::vector<int32_t>>{exchange.held_experts()}));
    EXPECT_EQ(exchange.expert_map(), expert_at);
    EXPECT_EQ(exchange.lost_experts(), std::vector{3u});
    exchange.set_expert_map(expert_at);
    EXPECT_EQ(told.size(), 1u) << "nothing changed";
    const Tokens& mine = tokens_of.by_place[world.rank()];
    const Expected expected = expected_on(kCase.shape, tokens_of.by_place, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of.given[world.rank()], true);
    const std::vector<int32_t> lost = lost_of(mine, kCase.shape.topk);
    const auto total = static_cast<uint64_t>(std::accumulate(lost.begin(), lost.end(), 0));
    EXPECT_EQ(total != 0, mine.count != 0) << "the case draws none";
    for (uint64_t call = 1; call < 3; ++call) {
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      EXPECT_EQ(received.lost.given(), mine.count != 0);
      EXPECT_EQ(read_back(accelerator_of(world), received.lost.as<int32_t>(), mine.count), lost);
      EXPECT_EQ(exchange.metrics().unplaced_choices, call * total);
      EXPECT_EQ(difference_after_combine(exchange, received, kCase.shape, mine, expected, {}), "");
      // The same on the route, which keeps it.
      DispatchInput again = tokens.input();
      again.topk_idx = again.topk_weights = {};
      const Received repeated = exchange.dispatch(again, *received.route);
      EXPECT_EQ(repeated.lost.data, received.lost.data);
    }
  }));
}

TEST_P(Placement, PlacesThatTheRanksDoNotDivideTakeManyChoicesATokenToo) {
  const auto all = worlds(3);
  const std::vector<int32_t> expert_at = uneven_places();
  const Placed tokens_of = draw(kUneven, expert_at, 60);
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kUneven.options());
    exchange.set_expert_map(expert_at);
    const Expected expected = expected_on(kUneven.shape, tokens_of.by_place, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of.given[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference(exchange, received, expected), "");
    EXPECT_EQ(difference_after_combine(exchange, received, kUneven.shape,
                                       tokens_of.by_place[world.rank()], expected,
                                       {.in_place = true, .with_weights = true}),
              "");
  }));
}

TEST_P(Placement, AnExpertThatDoesNotExistIsNamedAsItWasGiven) {
  for (const int64_t bad : {int64_t{7}, int64_t{11}, int64_t{12}, int64_t{-5}}) {
    const auto all = worlds(3);
    Placed tokens_of = draw();
    tokens_of.given[0].ids[4] = bad;
    const auto outcomes = run_ranks(all, [&](World& world) {
      ExpertParallel exchange(world, options_of_case());
      exchange.set_expert_map(kExpertAt);
      const TokensOnDevice tokens(accelerator_of(world), tokens_of.given[world.rank()], true);
      exchange.dispatch(tokens.input());
    });
    for (const auto& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.expected, "experts 0 to 6, or -1");
      EXPECT_EQ(error.seen, fmt::format("expert {} in token 1", bad));
    }
  }
}

TEST_P(Placement, PlacesThatCannotBeAreNamedOnAllRanks) {
  const auto all = worlds(3);
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, options_of_case());
    const auto seen = [&](const std::vector<int32_t>& expert_at) {
      try {
        exchange.set_expert_map(expert_at);
      } catch (const InvalidArgument& error) {
        return error.seen;
      }
      return std::string("accepted");
    };
    EXPECT_EQ(seen({0, 1, 2}), "3");
    std::vector<int32_t> without_1 = kExpertAt;
    without_1[4] = -1;
    EXPECT_EQ(seen(without_1), "accepted");
    EXPECT_EQ(exchange.lost_experts(), std::vector{1u});
    EXPECT_EQ(seen(std::vector<int32_t>(12, 7)), "7 at place 0");
    EXPECT_EQ(seen(std::vector<int32_t>(12, -2)), "-2 at place 0");
    std::vector<int32_t> mine = kExpertAt;
    if (world.rank() == 2) std::swap(mine[0], mine[1]);
    EXPECT_EQ(seen(mine), "another map");
    EXPECT_EQ(seen(kExpertAt), "accepted");
  }));
}

INSTANTIATE_ON_DEVICES(Placement);

}  // namespace
}  // namespace tokenyard::test
