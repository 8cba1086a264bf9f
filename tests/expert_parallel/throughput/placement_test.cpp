/// Expert maps: several places for a hot expert, unequal ranks.
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class Placement : public OnDevice {};

// 3 ranks of 4 places for 7 experts: expert 2 has three places, expert 5 two, and two are empty.
const std::vector<int32_t> kExpertAt{2, 0, 5, -1, 1, 2, 3, 4, 6, 5, 2, -1};
constexpr uint32_t kExperts = 7;
const ExchangeCase kCase{.shape = {.ranks = 3, .experts = 12, .hidden = 40, .topk = 3},
                         .tokens = {30, 0, 21}};

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

/// Tokens that choose experts, and the same tokens by place, as place_choices.hpp defines.
struct Placed {
  std::vector<Tokens> given, by_place;
};

Placed draw(const ExchangeCase& of = kCase, const std::vector<int32_t>& expert_at = kExpertAt,
            uint32_t experts = kExperts) {
  Shape as_named = of.shape;
  as_named.experts = experts;
  std::mt19937 random(3);
  Placed placed;
  for (const uint32_t count : of.tokens)
    placed.given.push_back(random_tokens(as_named, count, {.none = 0.2}, random));
  placed.by_place = placed.given;
  for (uint32_t rank = 0; rank < 3; ++rank)
    for (size_t i = 0; i < placed.given[rank].ids.size(); ++i) {
      int64_t& id = placed.by_place[rank].ids[i];
      if (id < 0) continue;
      std::vector<int64_t> places;
      for (size_t place = 0; place < expert_at.size(); ++place)
        if (expert_at[place] == id) places.push_back(static_cast<int64_t>(place));
      id = places[(i / of.shape.topk + rank) % places.size()];
    }
  return placed;
}

TEST_P(Placement, TokensGoToThePlacesOfTheirExperts) {
  const auto all = worlds(3);
  const Placed tokens_of = draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
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
    // Back to places by number.
    exchange.set_expert_map({});
    const TokensOnDevice tokens(accelerator_of(world), tokens_of.by_place[world.rank()], true);
    EXPECT_EQ(difference(exchange, exchange.dispatch(tokens.input()), expected), "");
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
  for (const int64_t bad : {int64_t{7}, int64_t{11}, int64_t{-5}}) {
    const auto all = worlds(3);
    Placed tokens_of = draw();
    tokens_of.given[0].ids[4] = bad;
    const auto outcomes = run_ranks(all, [&](World& world) {
      ExpertParallel exchange(world, kCase.options());
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
    ExpertParallel exchange(world, kCase.options());
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
    EXPECT_EQ(seen(without_1), "none for expert 1 of 7");
    EXPECT_EQ(seen(std::vector<int32_t>(12, 0)), "1");  // Fewer experts than choices per token.
    std::vector<int32_t> mine = kExpertAt;
    if (world.rank() == 2) std::swap(mine[0], mine[1]);
    EXPECT_EQ(seen(mine), "another map");
    EXPECT_EQ(seen(kExpertAt), "accepted");
  }));
}

INSTANTIATE_ON_DEVICES(Placement);

}  // namespace
}  // namespace tokenyard::test
