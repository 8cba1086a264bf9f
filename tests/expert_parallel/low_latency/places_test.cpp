/// Expert maps of low latency: replicas, empty places, experts without a place, ranks that go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/refused.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"

namespace tokenyard::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// 3 ranks of 4 places for 8 experts: expert 2 has three places, expert 5 two, expert 7 none, and
// two places are empty.
const std::vector<int32_t> kExpertAt{2, 0, 5, -1, 1, 2, 3, 4, 6, 5, 2, -1};
const LowLatencyCase kMapped{.shape = {.ranks = 3, .experts = 12, .hidden = 64, .topk = 4},
                             .tokens = {9, 0, 7},
                             .map = {.experts = 8, .expert_at = kExpertAt, .without = {}},
                             .picking = {.none = 0.2}};

class LowLatencyPlaces : public OnDevice {};

LowLatencyCase with_seed(LowLatencyCase of, uint32_t seed) {
  of.seed = seed;
  return of;
}

std::string difference(LowLatency& exchange, const LowLatencyCase& of) {
  return difference_after_batch(exchange, of, of.draw());
}

uint64_t lost_in(const LowLatencyCase& of, uint32_t rank) {
  const std::vector<int64_t> ids = of.draw()[rank].ids;
  return static_cast<uint64_t>(std::count(ids.begin(), ids.end(), kLostChoice));
}

TEST_P(LowLatencyPlaces, TokensGoToThePlacesOfTheirExpertsAndLostChoicesAreCounted) {
  expect_none_failed(run_ranks(worlds(3), [&](World& world) {
    LowLatency exchange(world, kMapped.options());
    exchange.set_expert_map(kExpertAt);
    EXPECT_THAT(exchange.lost_experts(), ElementsAre(7u));
    EXPECT_EQ(exchange.expert_map(), kExpertAt);
    uint64_t lost = 0;
    for (uint32_t seed = 1; seed < 6; ++seed) {
      LowLatencyCase of = with_seed(kMapped, seed);
      of.hooks = seed % 2 == 0;
      of.early_weights = seed;
      of.sms = seed == 3 ? 2 : 0;
      EXPECT_EQ(difference(exchange, of), "");
      lost += lost_in(of, world.rank());
    }
    EXPECT_EQ(exchange.metrics().unplaced_choices, lost);
    EXPECT_EQ(lost != 0, world.rank() != 1) << "the case draws none";
    // Back to the places of the beginning.
    exchange.set_expert_map({});
    EXPECT_THAT(exchange.lost_experts(), IsEmpty());
    LowLatencyCase plain = with_seed(kMapped, 9);
    plain.map.expert_at = exchange.expert_map();
    EXPECT_EQ(difference(exchange, plain), "");
    EXPECT_EQ(exchange.metrics().unplaced_choices, lost);
    exchange.close();
  }));
}

TEST_P(LowLatencyPlaces, AnIdThatIsNoExpertIsNamedAsItWasGiven) {
  // Among the numbers of places, beyond them, and below all.
  for (const int64_t bad : {int64_t{8}, int64_t{11}, int64_t{12}, int64_t{1} << 40, int64_t{-5}}) {
    expect_none_failed(run_ranks(worlds(3), [&](World& world) {
      LowLatency exchange(world, kMapped.options());
      exchange.set_expert_map(kExpertAt);
      const std::vector<Tokens> all = kMapped.draw();
      Tokens given = kMapped.named(all[world.rank()], world.rank());
      if (world.rank() == 0) given.ids[6] = bad;
      const LowLatencyTokens tokens(world, kMapped, given);
      exchange.dispatch(tokens.input());
      std::string seen = "nothing";
      try {
        exchange.wait();
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.expected, "experts 0 to 7, or -1");
        seen = error.seen;
      }
      EXPECT_EQ(seen, world.rank() == 0
                          ? fmt::format("expert {} in token 1, choice 2, of dispatch 1", bad)
                          : "nothing");
      world.barrier("all have looked");
    }));
  }
}

TEST_P(LowLatencyPlaces, AMaskedRanksPlacesAreNotChosen) {
  expect_none_failed(run_ranks(worlds(3), [&](World& world) {
    LowLatency exchange(world, kMapped.options());
    exchange.set_expert_map(kExpertAt);
    LowLatencyCase of = kMapped;
    of.map.without = {2};
    if (world.rank() == 2) {  // Makes its calls alone, so that all have the same epochs.
      exchange.update_mask(0, true);
      exchange.update_mask(1, true);
      of.map.without = {0, 1};
    } else {
      exchange.update_mask(2, true);
    }
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw(), of.map.without), "");
    EXPECT_EQ(exchange.metrics().unplaced_choices, lost_in(of, world.rank()));
    EXPECT_EQ(exchange.expert_map(), kExpertAt) << "a mask moves no expert";
    world.barrier("the end");
  }));
}

TEST_P(LowLatencyPlaces, ExpertsOfAnEvictedRankMoveToEmptyPlaces) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch together";
  expect_none_failed(run_ranks(worlds(3), [&](World& world) {
    LowLatency exchange(world, kMapped.options());
    std::vector<std::vector<int32_t>> told;
    exchange.on_experts_changed([&](const std::vector<int32_t>& held) { told.push_back(held); });
    exchange.set_expert_map(kExpertAt);
    const std::vector<int32_t> before = exchange.held_experts();
    EXPECT_EQ(told, (std::vector<std::vector<int32_t>>{before}));
    EXPECT_EQ(difference(exchange, with_seed(kMapped, 1)), "");
    world.barrier("rank 2 goes");
    if (world.rank() != 2) {
      exchange.evict({2});
      LowLatencyCase of = kMapped;
      // Expert 6 lived on rank 2 alone; experts 2 and 5 have replicas; 7 gets the place of nobody.
      of.map.expert_at = {2, 0, 5, 6, 1, 2, 3, 4, -1, -1, -1, -1};
      of.map.without = {2};
      EXPECT_EQ(exchange.expert_map(), of.map.expert_at);
      EXPECT_THAT(exchange.lost_experts(), ElementsAre(7u));
      if (world.rank() == 0)
        EXPECT_EQ(told.back(), exchange.held_experts());
      else
        EXPECT_EQ(told.size(), 1u) << "nothing changed here";
      for (uint32_t seed = 2; seed < 5; ++seed) {
        of.seed = seed;
        EXPECT_EQ(difference_after_batch(exchange, of, of.draw(), {2}), "");
      }
      ASSERT_EQ(exchange.failed_ranks().size(), 1u);
      EXPECT_EQ(exchange.failed_ranks()[0].rank, 2u);
      EXPECT_EQ(refused([&] { exchange.evict({world.rank()}); }), "rank");
      EXPECT_EQ(refused([&] { exchange.evict({3}); }), "rank");
      world.barrier("the end");
      return;
    }
    world.barrier("the end");
  }));
}

/// Rank 1 goes and comes back with another object, which gets map and epoch from the others.
TEST_P(LowLatencyPlaces, AReplacementGetsTheExpertsOfItsSlot) {
  expect_none_failed(run_ranks(worlds(3), [&](World& world) {
    auto exchange = std::make_unique<LowLatency>(world, kMapped.options());
    exchange->set_expert_map(kExpertAt);
    EXPECT_EQ(difference(*exchange, with_seed(kMapped, 1)), "");
    if (world.rank() == 1) {
      exchange.reset();
      world.barrier("rank 1 is gone");
      world.barrier("the others have gone on");
      exchange = std::make_unique<LowLatency>(world, kMapped.options());
    } else {
      world.barrier("rank 1 is gone");
      exchange->evict({1});
      world.barrier("the others have gone on");
      EXPECT_EQ(exchange->admit(), std::vector{1u});
    }
    EXPECT_EQ(exchange->expert_map(), kExpertAt);
    EXPECT_TRUE(exchange->failed_ranks().empty());
    for (uint32_t seed = 2; seed < 6; ++seed)
      EXPECT_EQ(difference(*exchange, with_seed(kMapped, seed)), "");
    exchange->close();
  }));
}

TEST_P(LowLatencyPlaces, OptionsOfAReplacementThatDifferAreNamedOnAllRanks) {
  const auto outcomes = run_ranks(worlds(3), [&](World& world) {
    auto exchange = std::make_unique<LowLatency>(world, kMapped.options());
    if (world.rank() != 1) {
      exchange->evict({1});
      exchange->admit();
      return;
    }
    exchange.reset();
    LowLatencyOptions other = kMapped.options();
    other.places_per_rank = 5;
    LowLatency replacement(world, other);
  });
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "places_per_rank");
    EXPECT_EQ(error.rank, 1u);
  }
}

TEST_P(LowLatencyPlaces, MapsThatCannotBeOrDifferAreRefusedOnAllRanks) {
  expect_none_failed(run_ranks(worlds(3), [&](World& world) {
    LowLatency exchange(world, kMapped.options());
    const auto seen = [&](const std::vector<int32_t>& expert_at) {
      try {
        exchange.set_expert_map(expert_at);
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument, "expert_at");
        return error.seen;
      }
      return std::string("accepted");
    };
    EXPECT_EQ(seen({0, 1, 2}), "3");
    EXPECT_EQ(seen(std::vector<int32_t>(12, 8)), "8 at place 0");
    std::vector<int32_t> mine = kExpertAt;
    if (world.rank() == 2) std::swap(mine[0], mine[1]);
    EXPECT_EQ(seen(mine), "another map");
    EXPECT_EQ(seen(kExpertAt), "accepted");
    EXPECT_EQ(difference(exchange, kMapped), "");
    exchange.close();
  }));
}

INSTANTIATE_ON_DEVICES(LowLatencyPlaces);

/// A captured dispatch keeps the address of the map's table.
TEST(LowLatencyPlacesReplayed, UseTheNewestMap) {
  const auto all = recording_worlds(3, {.arena_bytes = size_t{4} << 20});
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, kMapped.options());
    exchange.set_expert_map(kExpertAt);
    LowLatencyCase of = kMapped;
    const LowLatencyTokens tokens(world, of, of.given(of.draw()[world.rank()], world.rank()));
    LowLatencyReceived received;
    const auto replay =
        recording_accelerator(world).record([&] { received = exchange.dispatch(tokens.input()); });
    replay();
    EXPECT_EQ(difference_after_dispatch(exchange, of, of.draw(), received), "");
    std::reverse(of.map.expert_at.begin(), of.map.expert_at.end());
    exchange.set_expert_map(of.map.expert_at);
    replay();
    EXPECT_EQ(difference_after_dispatch(exchange, of, of.draw(), received), "");
    world.barrier("the end");
  }));
}

TEST(LowLatencyPlacesOptions, MustHoldAllExperts) {
  const auto argument_of = [](LowLatencyOptions options) {
    return refused([&] { LowLatency::memory(options, 4); });
  };
  const LowLatencyOptions good{
      .experts = 6, .places_per_rank = 2, .hidden = 32, .topk = 2, .tokens_max = 4};
  const auto with = [&](auto change) {
    LowLatencyOptions options = good;
    change(options);
    return argument_of(options);
  };
  EXPECT_EQ(argument_of(good), "nothing");
  EXPECT_EQ(with([](auto& options) { options.places_per_rank = 1; }), "places_per_rank");
  EXPECT_EQ(with([](auto& options) { options.places_per_rank = 1u << 31; }), "places_per_rank");
  EXPECT_EQ(with([](auto& options) { options.places_per_rank = 0; }), "nothing");
  EXPECT_EQ(with([](auto& options) { options.experts = 3; }), "nothing");
  EXPECT_EQ(with([](auto& options) { options.experts = 0; }), "experts");
}

}  // namespace
}  // namespace tokenyard::test
