/// Low-latency dispatch and combine on every kind of shape, checked bit for bit.
#include "expert_parallel/low_latency_checks.hpp"
#include "expert_parallel/low_latency_replay.hpp"
#include "expert_parallel/low_latency_survivors.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

class LowLatencyBatch : public OnDevice {
 protected:
  /// A few batches, so that both buffers are used again.
  void check(const LowLatencyCase& of, uint32_t batches = 3) {
    const auto all_worlds = worlds(of.shape.ranks);
    expect_none_failed(run_ranks(all_worlds, [&](World& world) {
      LowLatency exchange(world, of.options());
      LowLatencyCase changing = of;
      for (uint32_t batch = 0; batch < batches; ++batch, ++changing.seed)
        EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
      EXPECT_TRUE(exchange.masked().empty());
      exchange.close();
    }));
  }
};

TEST_P(LowLatencyBatch, WorksForEveryNumberOfRanks) {
  for (const uint32_t ranks : {1, 2, 3, 4, 6, 8}) {
    SCOPED_TRACE(ranks);
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(3 + 5 * rank % 7);
    check({.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 64, .topk = 4},
           .tokens = tokens,
           .picking = {.none = 0.1}});
  }
}

TEST_P(LowLatencyBatch, DeliversEveryFormat) {
  for (const LowLatencyRows rows : {LowLatencyRows::bf16, LowLatencyRows::fp8,
                                    LowLatencyRows::fp8_rounded, LowLatencyRows::fp8_ue8m0})
    for (const bool given_fp8 : {false, true}) {
      if (given_fp8 && rows == LowLatencyRows::bf16) continue;
      SCOPED_TRACE(static_cast<int>(rows));
      check({.shape = {.ranks = 3, .experts = 12, .hidden = 2880, .topk = 4},
             .tokens = {4, 9, 2},
             .rows = rows,
             .given_fp8 = given_fp8},
            2);
    }
}

TEST_P(LowLatencyBatch, WorksForEveryWidthOfARow) {
  for (const uint32_t hidden : {32, 96, 512, 544, 2048, 7168})
    for (const LowLatencyRows rows : {LowLatencyRows::bf16, LowLatencyRows::fp8}) {
      SCOPED_TRACE(hidden);
      check({.shape = {.ranks = 2, .experts = 6, .hidden = hidden, .topk = 3},
             .tokens = {3, 5},
             .rows = rows},
            1);
    }
}

TEST_P(LowLatencyBatch, WorksForEveryNumberOfPicks) {
  for (const uint32_t topk : {1, 2, 6, 8, 9, 16}) {
    SCOPED_TRACE(topk);
    check({.shape = {.ranks = 4, .experts = 32, .hidden = 32, .topk = topk},
           .tokens = {5, 11, 0, 7},
           .picking = {.none = 0.2}});
  }
}

TEST_P(LowLatencyBatch, SendsAndReceivesApart) {
  check({.shape = {.ranks = 3, .experts = 9, .hidden = 288, .topk = 3},
         .tokens = {7, 3, 5},
         .hooks = true},
        5);
}

/// All of them, some of them; of eight picks or fewer a token has one word of ids, else two.
TEST_P(LowLatencyBatch, RanksMayGiveTheirWeightsToDispatch) {
  for (const uint32_t early : {0b111, 0b010})
    for (const uint32_t topk : {3, 9})
      for (const bool hooks : {false, true})
        check({.shape = {.ranks = 3, .experts = 36, .hidden = 288, .topk = topk},
               .tokens = {7, 0, 40},
               .picking = {.none = 0.2},
               .hooks = hooks,
               .early_weights = early},
              4);
}

/// Batches need not be combined in the order in which they were dispatched, nor at all, and the
/// ranks' own numbers for one may differ: its weights are found all the same.
TEST_P(LowLatencyBatch, WeightsAreFoundWhateverTheOrderOfCombines) {
  LowLatencyCase of{.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 3},
                    .tokens = {7, 3, 5},
                    .early_weights = 0b011};
  expect_none_failed(run_ranks(worlds(of.shape.ranks), [&](World& world) {
    LowLatency exchange(world, of.options());
    const Survivor all_live(exchange, std::nullopt);
    LowLatencyCase changing = of;
    const auto next = [&]() -> const LowLatencyCase& {
      ++changing.seed;
      return changing;
    };
    std::optional<SurvivorBatch> dropped(std::in_place, all_live, next(), false);
    dropped->dispatch(false);
    if (world.rank() != 1) dropped.reset();
    SurvivorBatch lasting(all_live, next(), false);
    lasting.dispatch(false);  // Rank 1's other batch, the others' first.
    dropped.reset();
    for (uint32_t turn = 0; turn < 3; ++turn) {
      SurvivorBatch between(all_live, next(), false);
      between.dispatch(false);
      between.combine(false);
    }
    lasting.combine(false);
    EXPECT_TRUE(exchange.masked().empty());
    exchange.close();
  }));
}

/// On both buffers and again.
TEST_P(LowLatencyBatch, TwoBatchesOverlap) {
  LowLatencyCase of{.shape = {.ranks = 3, .experts = 9, .hidden = 288, .topk = 3},
                    .tokens = {7, 3, 5}};
  expect_none_failed(run_ranks(worlds(of.shape.ranks), [&](World& world) {
    LowLatency exchange(world, of.options());
    const Survivor all_live(exchange, std::nullopt);
    LowLatencyCase changing = of;
    for (uint32_t turn = 0; turn < 3; ++turn) {
      SurvivorBatch one(all_live, changing, false);
      ++changing.seed;
      SurvivorBatch other(all_live, changing, false);
      ++changing.seed;
      overlap(one, other);
    }
    EXPECT_TRUE(exchange.masked().empty());
    exchange.close();
  }));
}

TEST_P(LowLatencyBatch, CombinesLogFmtCodesWithinTheirError) {
  for (const uint32_t hidden : {32, 256, 2880})
    for (const bool hooks : {false, true})
      check({.shape = {.ranks = 3, .experts = 12, .hidden = hidden, .topk = 4},
             .tokens = {4, 9, 2},
             .picking = {.none = 0.1},
             .hooks = hooks,
             .logfmt = true});
}

TEST_P(LowLatencyBatch, GivesTheSameBitsForEveryGrid) {
  for (const uint32_t sms : {2, 3, 8, 16, 24, 32})
    check({.shape = {.ranks = 2, .experts = 8, .hidden = 512, .topk = 4},
           .tokens = {20, 9},
           .sms = sms},
          2);
  // Of many tokens several blocks tell ids, where there are as many.
  for (const uint32_t sms : {8, 12, 16, 20})
    check({.shape = {.ranks = 2, .experts = 8, .hidden = 64, .topk = 4},
           .tokens = {127, 9},
           .sms = sms},
          2);
}

TEST_P(LowLatencyBatch, WorksForTheLargestBatches) {
  check({.shape = {.ranks = 2, .experts = 16, .hidden = 64, .topk = 8}, .tokens = {511, 300}}, 2);
}

TEST_P(LowLatencyBatch, SomeRanksMayHaveNoTokens) {
  check({.shape = {}, .tokens = {0, 12, 0, 3}});
}

TEST_P(LowLatencyBatch, NobodyNeedsToHaveTokens) {
  check({.shape = {}, .tokens = {0, 0, 0, 0}});
}

TEST_P(LowLatencyBatch, TokensMayGoNowhere) {
  check({.shape = {}, .tokens = {5, 6, 7, 8}, .picking = {.none = 1.0}});
}

TEST_P(LowLatencyBatch, AllTokensMayGoToOneExpert) {
  check({.shape = {}, .tokens = {40, 31, 32, 33}, .picking = {.one_expert = true}});
}

/// Few tokens of several spans, so that blocks share what is sent of each.
TEST_P(LowLatencyBatch, BlocksShareARowOfSums) {
  for (const bool logfmt : {false, true})
    check({.shape = {.ranks = 2, .experts = 8, .hidden = 1312, .topk = 4},
           .tokens = {2, 1},
           .logfmt = logfmt,
           .early_weights = 0b01,
           .sms = 32},
          3);
}

INSTANTIATE_ON_DEVICES(LowLatencyBatch);

/// Where all weights were told by dispatches a rank's combine sends whether others have begun
/// theirs or not.
TEST(LowLatencyEarlyWeights, ACombineSendsWithoutTheOthers) {
  LowLatencyCase of{.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 3},
                    .tokens = {7, 3, 5},
                    .early_weights = 0b111};
  const WorldOptions options{.timeout = std::chrono::seconds(20), .arena_bytes = size_t{4} << 20};
  expect_none_failed(run_ranks(World::in_process(3, "host", options), [&](World& world) {
    LowLatency exchange(world, of.options());
    const Survivor all_live(exchange, std::nullopt);
    SurvivorBatch batch(all_live, of, false);
    batch.dispatch(false);
    for (uint32_t turn = 0; turn < world.size(); ++turn) {
      if (turn == world.rank()) {
        batch.combine(true);
        exchange.wait();
      }
      world.barrier("one after the other");
    }
    batch.receive_combine();
    EXPECT_TRUE(exchange.masked().empty());
    exchange.close();
  }));
}

/// Of more than eight a kernel looks its peers up in a table; of more than 32 a warp has fewer
/// lanes than there are ranks. 128 is the most.
TEST(LowLatencyWideWorlds, WorkAsNarrowOnesDo) {
  for (const uint32_t ranks : {9, 34, 128}) {
    SCOPED_TRACE(ranks);
    LowLatencyCase of{.shape = {.ranks = ranks, .experts = ranks, .hidden = 32, .topk = 8},
                      .tokens = {},
                      .picking = {.none = 0.1},
                      .early_weights = 0x55555555};
    for (uint32_t rank = 0; rank < ranks; ++rank) of.tokens.push_back(rank % 4);
    const WorldOptions options{.timeout = std::chrono::seconds(60), .arena_bytes = size_t{2} << 20};
    expect_none_failed(run_ranks(World::in_process(ranks, "host", options), [&](World& world) {
      LowLatency exchange(world, of.options());
      LowLatencyCase changing = of;
      for (const bool hooks : {false, true, false}) {
        changing.hooks = hooks;
        EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
        ++changing.seed;
      }
      EXPECT_TRUE(exchange.masked().empty());
      exchange.close();
    }));
  }
}

/// What graphs replay, without graphs; low_latency_graph_gpu_test.cpp has those.
TEST(LowLatencyReplay, TheSameMemoryServesBatchAfterBatch) {
  constexpr uint32_t kRanks = 3;
  const WorldOptions options{.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20};
  for (const bool hooks : {false, true})
    expect_none_failed(run_ranks(World::in_process(kRanks, "host", options), [&](World& world) {
      check_replays(world, replayed_case(kRanks, hooks),
                    [](Stream, const std::function<void()>& body) { return body; });
    }));
}

}  // namespace
}  // namespace tokenyard::test
