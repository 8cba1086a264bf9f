/// The rank of every expert, and batches of experts that ranks do not divide.
#include "expert_parallel/low_latency/kernels/expert_homes.hpp"

#include <gmock/gmock.h>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

using low_latency::ExpertHomes;

TEST(LowLatencyExpertHomes, EveryExpertHasTheRankThatTheReferenceGivesIt) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 24u, 96u, 128u})
    for (uint32_t experts = ranks; experts < 5 * ranks + 3; ++experts) {
      const Shape shape{.ranks = ranks, .experts = experts};
      const ExpertHomes homes = ExpertHomes::of(experts, ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(homes.held_by(rank), shape.local_experts(rank)) << experts << " on " << ranks;
        ASSERT_EQ(homes.first_of(rank), shape.first_expert(rank)) << experts << " on " << ranks;
        ASSERT_LE(homes.held_by(rank), homes.held_at_most());
        for (uint32_t local = 0; local < homes.held_by(rank); ++local)
          ASSERT_EQ(homes.rank_of(homes.first_of(rank) + local), rank)
              << experts << " on " << ranks;
      }
    }
}

class LowLatencyUnevenExperts : public OnDevice {};

TEST_P(LowLatencyUnevenExperts, BatchesAreExact) {
  for (const auto& [ranks, experts, topk] :
       {std::tuple{3u, 8u, 3u}, {3u, 7u, 7u}, {4u, 5u, 2u}, {4u, 11u, 8u}}) {
    const LowLatencyCase even{
        .shape = {.ranks = ranks, .experts = experts, .hidden = 64, .topk = topk},
        .tokens = {3, 5, 0, 4}};
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      LowLatencyCase of = even;
      of.tokens.resize(ranks);
      LowLatency exchange(world, of.options());
      EXPECT_EQ(exchange.local_experts(), of.shape.local_experts(world.rank()));
      EXPECT_EQ(exchange.first_expert(), of.shape.first_expert(world.rank()));
      for (const bool hooks : {false, true})
        for (const bool early : {false, true}) {
          of.hooks = hooks;
          of.early_weights = early ? 0b0101 : 0;
          of.logfmt = hooks && early;
          of.seed += 1;
          EXPECT_EQ(difference_after_batch(exchange, of, of.draw()), "");
        }
      EXPECT_THAT(exchange.failed_ranks(), testing::IsEmpty());
      exchange.close();
    }));
  }
}

TEST_P(LowLatencyUnevenExperts, FewerExpertsThanRanksAreRefused) {
  const auto all = worlds(3);
  for (const auto& outcome : run_ranks(all, [](World& world) {
         LowLatency exchange(world, {.experts = 2, .hidden = 32, .topk = 1, .tokens_max = 2});
       }))
    EXPECT_EQ(error_of<InvalidArgument>(outcome).argument, "experts");
}

INSTANTIATE_ON_DEVICES(LowLatencyUnevenExperts);

}  // namespace
}  // namespace tokenyard::test
