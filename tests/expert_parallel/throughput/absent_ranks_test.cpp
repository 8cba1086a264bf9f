// Throughput exchanges in worlds with empty slots: exact among the ranks that are there, with an
// entry per rank in every array and zeros for the others.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kRanks = 4;

/// The first, one between others, the last, and all but one.
const std::vector<std::vector<uint32_t>> kAbsences{{0}, {2}, {3}, {0, 1, 3}};

/// Experts that the ranks do not divide, so that their shares differ.
ExchangeCase case_without(const std::vector<uint32_t>& absent, uint32_t seed = 1) {
  ExchangeCase exchange{.shape = {.ranks = kRanks, .experts = 14, .hidden = 64, .topk = 4},
                        .tokens = {37, 50, 20, 41},
                        .picking = {.none = 0.1},
                        .seed = seed,
                        .absent = absent};
  for (const uint32_t rank : absent) exchange.tokens[rank] = 0;
  return exchange;
}

class AbsentRanks : public OnDevice {
 protected:
  /// Calls `body` on the ranks that are there, for each set of absent ones.
  void run(const std::function<void(World&, const ExchangeCase&)>& body) const {
    for (const std::vector<uint32_t>& absent : kAbsences) {
      SCOPED_TRACE(fmt::format("without {}", fmt::join(absent, ", ")));
      const ExchangeCase exchange = case_without(absent);
      expect_none_failed(
          run_ranks(worlds(kRanks, absent), [&](World& world) { body(world, exchange); }));
    }
  }
};
INSTANTIATE_ON_DEVICES(AbsentRanks);

TEST_P(AbsentRanks, AreNotPartOfDispatchAndCombine) {
  run([](World& world, const ExchangeCase& exchange) {
    for (uint32_t seed = 1; seed < 4; ++seed) {
      ExchangeCase drawn = exchange;
      drawn.seed = seed;
      drawn.idx_is_int64 = seed % 2 == 0;
      drawn.sms = seed;
      EXPECT_EQ(difference_after_exchange(world, drawn), "");
    }
  });
}

/// One exchange and its tokens, as they are given and as they count.
struct Calls {
  Calls(World& world, const ExchangeCase& of)
      : given(of.draw()),
        all(of.counted(given)),
        mine(all[world.rank()]),
        expected(expected_on(of.shape, all, world.rank())),
        exchange(world, of.options()),
        device(accelerator_of(world), given[world.rank()], of.idx_is_int64) {}

  const std::vector<Tokens> given, all;
  const Tokens& mine;
  const Expected expected;
  ExpertParallel exchange;
  const TokensOnDevice device;
};

TEST_P(AbsentRanks, AreNotPartOfAnyOtherCall) {
  run([](World& world, const ExchangeCase& of) {
    Calls calls(world, of);
    ExpertParallel& exchange = calls.exchange;
    const Received first = exchange.dispatch(calls.device.input());
    EXPECT_EQ(difference(exchange, first, calls.expected), "");
    EXPECT_EQ(difference(exchange, exchange.dispatch({.x = calls.device.input().x}, *first.route),
                         calls.expected),
              "");
    EXPECT_EQ(difference_after_combine(exchange, first, of.shape, calls.mine, calls.expected,
                                       {.in_place = false, .with_weights = true}),
              "");
    EXPECT_EQ(difference_if_watched(exchange, calls.device, calls.expected), "");
    EXPECT_EQ(
        difference_with_places(exchange, calls.device, of.shape, calls.mine, calls.expected, 3),
        "");
    EXPECT_EQ(difference_in_format(exchange, calls.device, calls.expected,
                                   {.type = DataType::float8_e4m3fn, .scale_words = 4}, 0),
              "");
    EXPECT_EQ(difference_by_expert(exchange, first, of.shape, calls.mine, 8), "");
    for (const bool waits : {true, false})
      EXPECT_EQ(difference_by_expert_at_once(exchange, calls.device, first, calls.device,
                                             calls.expected, 8, 5, waits),
                "");
    for (uint32_t other : of.present())
      EXPECT_EQ(difference_after_other_rows(exchange, calls.device, other, other % 2 == 0), "");
  });
}

/// Statistics and metrics have an entry per rank, which stays 0 for an absent one.
TEST_P(AbsentRanks, CountForNothingInStatistics) {
  run([](World& world, const ExchangeCase& of) {
    Calls calls(world, of);
    const Received received = calls.exchange.dispatch(calls.device.input());
    EXPECT_EQ(difference_after_combine(calls.exchange, received, of.shape, calls.mine,
                                       calls.expected, {}),
              "");
    const ExpertParallel::Metrics metrics = calls.exchange.metrics();
    ASSERT_EQ(metrics.wait_seconds_by_peer.size(), kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(metrics.received_rows_by_peer[rank], calls.expected.rows_from[rank]);
      EXPECT_EQ(metrics.returned_rows_by_peer[rank], calls.expected.rows_from[rank]);
      if (!of.is_absent(rank)) continue;
      EXPECT_EQ(metrics.wait_seconds_by_peer[rank], 0);
      EXPECT_NE(metrics.slowest_rank, rank);
    }
    EXPECT_EQ(metrics.received_choices_by_expert,
              std::vector<uint64_t>(calls.expected.tokens_per_expert.begin(),
                                    calls.expected.tokens_per_expert.end()));
  });
}

/// A token that is wrong is refused by all who are there, whichever expert it names.
TEST_P(AbsentRanks, DoNotHideAWrongToken) {
  run([](World& world, const ExchangeCase& of) {
    const uint32_t culprit = of.present().back();
    std::vector<Tokens> given = of.draw();
    given[culprit].ids[3] = of.shape.experts;
    ExpertParallel exchange(world, of.options());
    const TokensOnDevice device(accelerator_of(world), given[world.rank()], true);
    try {
      exchange.dispatch(device.input());
      ADD_FAILURE() << "it was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "topk_idx");
      EXPECT_EQ(error.rank, culprit);
    }
    EXPECT_TRUE(exchange.failed_ranks().empty());
  });
}

/// The ranks that are there compare their options with the first of them.
TEST_P(AbsentRanks, DoNotDecideOptions) {
  const std::vector<uint32_t> absent{0};
  const ExchangeCase of = case_without(absent);
  const Outcomes outcomes = run_ranks(worlds(kRanks, absent), [&](World& world) {
    ExpertParallelOptions options = of.options();
    if (world.rank() == 2) options.topk = 3;
    ExpertParallel exchange(world, options);
  });
  for (const uint32_t rank : of.present()) {
    const auto error = error_of<InvalidArgument>(outcomes[rank]);
    EXPECT_EQ(error.argument, "topk");
    EXPECT_EQ(error.expected, "4 as on rank 1");
    EXPECT_EQ(error.rank, 2u);
  }
}

/// A replica on a rank that is there answers for one on an absent rank. Experts of the absent rank
/// alone take empty places, in order; once there is none, a choice of such an expert is lost.
TEST_P(AbsentRanks, AreReplacedByReplicas) {
  const std::vector<uint32_t> absent{1};
  // Three places per rank. Expert 1 is on ranks 1 and 2, experts 2 and 6 on rank 1 alone: 2 moves
  // to the only empty place, the second of rank 3, and 6 has none.
  const std::vector<int32_t> expert_at{0, 3, 7, 1, 2, 6, 1, 4, 7, 5, -1, 7};
  const std::vector<std::vector<int32_t>> chosen_at{{6, 0, 0}, {}, {6, 0, 0}, {0, 3, 0}};
  const std::vector<uint32_t> rows_each{2, 0, 2, 1};
  expect_none_failed(run_ranks(worlds(kRanks, absent), [&](World& world) {
    ExpertParallel exchange(
        world, {.experts = 8, .places_per_rank = 3, .hidden = 64, .topk = 2, .tokens_max = 8});
    exchange.set_expert_map(expert_at);
    const Tokens tokens{.count = 3,
                        .x = std::vector<uint16_t>(192, 0x3f80),
                        .ids = {1, 2, 1, 0, 6, 0},
                        .weights = {0.5f, 0.25f, 1.0f, 2.0f, 4.0f, 8.0f}};
    const TokensOnDevice device(accelerator_of(world), tokens, true);
    const Received received = exchange.dispatch(device.input());
    const uint32_t rank = world.rank(), rows = rows_each[rank];
    EXPECT_THAT(received.rows_from, testing::ElementsAre(rows, 0, rows, rows));
    EXPECT_THAT(received.tokens_per_expert, testing::ElementsAreArray(chosen_at[rank]));
    exchange.wait();
    EXPECT_EQ(exchange.metrics().unplaced_choices, 1u);
  }));
}

TEST_P(AbsentRanks, MayBeMany) {
  if (GetParam() == "cuda") GTEST_SKIP() << "takes too many blocks for one GPU";
  // More ranks than a kernel finds addresses of among its parameters, and than a warp has lanes.
  ExchangeCase of{.shape = {.ranks = 40, .experts = 80, .hidden = 32, .topk = 6},
                  .tokens = std::vector<uint32_t>(40, 3),
                  .sms = 1};
  for (uint32_t rank = 0; rank < 40; ++rank)
    if (rank % 9 != 4) of.absent.push_back(rank);
  for (const uint32_t rank : of.absent) of.tokens[rank] = 0;
  expect_none_failed(run_ranks(worlds(40, of.absent), [&](World& world) {
    EXPECT_EQ(difference_after_exchange(world, of), "");
  }));
}

}  // namespace
}  // namespace tokenyard::test
