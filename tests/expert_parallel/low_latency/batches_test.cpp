/// Low-latency dispatch and combine on every kind of shape, checked bit for bit.
#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class LowLatencyBatch : public OnDevice {
 protected:
  /// A few batches, so that both buffers are reused.
  void check(const LowLatencyCase& of, uint32_t batches = 3) {
    const auto all_worlds = worlds(of.shape.ranks);
    expect_none_failed(run_ranks(all_worlds, [&](World& world) {
      LowLatency exchange(world, of.options());
      LowLatencyCase changing = of;
      for (uint32_t batch = 0; batch < batches; ++batch, ++changing.seed)
        EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
      EXPECT_TRUE(exchange.failed_ranks().empty());
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

/// All ranks, then some. With at most eight choices a token has one ids word, else two.
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

/// Batches need not be combined in the order of their dispatches, nor at all, and the ranks' own
/// numbers for a batch may differ: its weights are found nevertheless.
TEST_P(LowLatencyBatch, WeightsAreFoundWhateverTheOrderOfCombines) {
  LowLatencyCase of{.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 3},
                    .tokens = {7, 3, 5},
                    .early_weights = 0b011};
  expect_none_failed(run_ranks(worlds(of.shape.ranks), [&](World& world) {
    LowLatency exchange(world, of.options());
    Survivor all_live(exchange, std::nullopt);
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
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

/// On both buffers, repeatedly.
TEST_P(LowLatencyBatch, TwoBatchesOverlap) {
  LowLatencyCase of{.shape = {.ranks = 3, .experts = 9, .hidden = 288, .topk = 3},
                    .tokens = {7, 3, 5}};
  expect_none_failed(run_ranks(worlds(of.shape.ranks), [&](World& world) {
    LowLatency exchange(world, of.options());
    Survivor all_live(exchange, std::nullopt);
    LowLatencyCase changing = of;
    for (uint32_t turn = 0; turn < 3; ++turn) {
      SurvivorBatch one(all_live, changing, false);
      ++changing.seed;
      SurvivorBatch other(all_live, changing, false);
      ++changing.seed;
      overlap(one, other);
    }
    EXPECT_TRUE(exchange.failed_ranks().empty());
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

/// Returns a row of small values whose last chunk of 256 channels is not full. In the other chunks,
/// the channels of lanes that have none in the last are `apart`, up to where its first scale would
/// end.
std::vector<uint16_t> row_with(uint32_t hidden, float apart) {
  constexpr uint32_t kChunk = 256;
  const uint32_t last = (hidden - 1) / kChunk * kChunk;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(1e-5f, 2e-5f);
  std::vector<uint16_t> row;
  for (uint32_t channel = 0; channel < hidden; ++channel) {
    const uint32_t place = channel % kChunk;
    const bool beside = channel < last && place >= hidden - last && place < kChunk / 2;
    row.push_back(to_bf16(beside ? apart : value(random)));
  }
  return row;
}

/// Returns a rank's result for a token whose only expert is on the next rank and produces `row`.
std::vector<uint16_t> sum_from_afar(LowLatency& exchange, const LowLatencyCase& of,
                                    const std::vector<uint16_t>& row) {
  World& world = exchange.world();
  const Tokens mine{.count = 1,
                    .x = std::vector<uint16_t>(of.shape.hidden),
                    .ids = {int64_t{(world.rank() + 1) % world.size()} * of.shape.local_experts()},
                    .weights = {1}};
  const LowLatencyTokens tokens(world, of, mine);
  const LowLatencyCall call{.sms = of.sms};
  const LowLatencyReceived received = exchange.dispatch(tokens.input(), call);
  const TensorView y = exchange.combine_buffer(received.handle);
  std::vector<uint16_t> rows;
  for (uint32_t i = 0; i < of.shape.experts * exchange.options().tokens_max; ++i)
    rows.insert(rows.end(), row.begin(), row.end());
  exchange.wait();
  accelerator_of(world).copy(y.data, rows.data(), rows.size() * 2, Stream{});
  await_all(accelerator_of(world));
  const CombineOnDevice combined(exchange, of, mine);
  exchange.combine(combined.what(y, tokens), received.handle, call);
  exchange.wait();
  return combined.out.read();
}

/// A chunk with few channels is encoded on its own scale: lanes without channels there hold no
/// values of earlier chunks. (They once did: one NaN turned another chunk into NaNs, one large
/// number turned it into zeros, and the number of blocks decided which.)
TEST_P(LowLatencyBatch, ALogFmtScaleIsThatOfItsOwnChannels) {
  for (const uint32_t hidden : {1088, 7232})
    for (const float apart : {NAN, 3e38f, 1.0f}) {
      SCOPED_TRACE(fmt::format("hidden {}, beside {}", hidden, apart));
      const std::vector<uint16_t> row = row_with(hidden, apart);
      expect_none_failed(run_ranks(worlds(2), [&](World& world) {
        LowLatencyCase of{.shape = {.ranks = 2, .experts = 2, .hidden = hidden, .topk = 1},
                          .tokens = {1, 1},
                          .logfmt = true};
        LowLatency exchange(world, of.options());
        std::vector<std::vector<uint16_t>> sums;
        for (const uint32_t sms : {2, 3, 16, 32}) {
          of.sms = sms;
          sums.push_back(sum_from_afar(exchange, of, row));
          EXPECT_EQ(difference("sums", sums.back(), sums.front()), "") << sms << " blocks";
        }
        for (uint32_t channel = hidden / 256 * 256; channel < hidden; ++channel) {
          const float expected = from_bf16(row[channel]);
          ASSERT_NEAR(from_bf16(sums.front()[channel]), expected, 0.03f * expected) << channel;
        }
        exchange.close();
      }));
    }
}

TEST_P(LowLatencyBatch, GivesTheSameBitsForEveryGrid) {
  for (const uint32_t sms : {2, 3, 8, 16, 24, 32})
    check({.shape = {.ranks = 2, .experts = 8, .hidden = 512, .topk = 4},
           .tokens = {20, 9},
           .sms = sms},
          2);
  // With many tokens several blocks publish ids, if there are that many.
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

/// Few tokens of several spans, so that blocks share the work of each.
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

class LowLatencyWideWorlds : public testing::Test {
 protected:
  static void check(uint32_t ranks, uint32_t batches) {
    SCOPED_TRACE(ranks);
    LowLatencyCase of{.shape = {.ranks = ranks, .experts = ranks, .hidden = 32, .topk = 8},
                      .tokens = {},
                      .picking = {.none = 0.1},
                      .early_weights = 0x55555555};
    for (uint32_t rank = 0; rank < ranks; ++rank) of.tokens.push_back(rank % 4);
    const WorldOptions options{.timeout = std::chrono::seconds(60) * (1 + ranks / 64),
                               .arena_bytes = size_t{8} << 20};
    expect_none_failed(run_ranks(World::in_process(ranks, "host", options), [&](World& world) {
      LowLatency exchange(world, of.options());
      LowLatencyCase changing = of;
      for (uint32_t batch = 0; batch < batches; ++batch, ++changing.seed) {
        changing.hooks = batch % 2 == 1;
        EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
      }
      EXPECT_TRUE(exchange.failed_ranks().empty());
      exchange.close();
    }));
  }
};

/// With more than eight ranks a kernel looks its peers up in a table; with more than 32 a warp has
/// fewer lanes than there are ranks.
TEST_F(LowLatencyWideWorlds, WorkAsNarrowOnesDo) {
  for (const uint32_t ranks : {9, 34, 130}) check(ranks, 3);
}

/// Takes minutes.
TEST_F(LowLatencyWideWorlds, DISABLED_FiveHundredAndTwelveRanks) {
  check(512, 2);
}

/// The calls that graphs replay, recorded on the host; low_latency/graph_gpu_test.cpp uses graphs.
TEST(LowLatencyReplay, TheSameMemoryServesBatchAfterBatch) {
  constexpr uint32_t kRanks = 3;
  const WorldOptions options{.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20};
  for (const bool hooks : {false, true})
    expect_none_failed(run_ranks(recording_worlds(kRanks, options), [&](World& world) {
      check_replays(world, replayed_case(kRanks, hooks),
                    [&](Stream, const std::function<void()>& body) {
                      return recording_accelerator(world).record(body);
                    });
    }));
}

}  // namespace
}  // namespace tokenyard::test
