/// Ranks that share a GPU launch one grid, so all ranks launch a collective kernel in one shape,
/// however many experts each rank holds.
#include <gtest/gtest.h>

#include <array>

#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kRanks = 3, kExperts = 8, kHidden = 64;

/// One token per rank, for experts of the first and the last rank.
struct Token {
  alignas(16) std::array<uint16_t, kHidden> x{};
  std::array<int64_t, 2> ids{0, kExperts - 1};
  std::array<float, 2> weights{1, 1};
};

/// Runs `call(world)` on ranks that hold three, three and two experts.
template <class Call>
void expect_one_shape(Call call) {
  const auto worlds = recording_worlds(kRanks, {.arena_bytes = size_t{64} << 20});
  expect_none_failed(run_ranks(worlds, call));
  const auto& first = recording_accelerator(*worlds[0]).shapes();
  EXPECT_FALSE(first.empty());
  for (const auto& world : worlds)
    for (const auto& [kernel, shape] : recording_accelerator(*world).shapes()) {
      if (shape.local) continue;  // Waits for no other rank.
      const LaunchShape& expected = first.at(kernel);
      EXPECT_EQ(shape.blocks, expected.blocks) << kernel << " on rank " << world->rank();
      EXPECT_EQ(shape.warps, expected.warps) << kernel << " on rank " << world->rank();
      EXPECT_EQ(shape.extra_shared_bytes, expected.extra_shared_bytes)
          << kernel << " on rank " << world->rank();
    }
}

DispatchInput input_of(const Token& token) {
  return {.x = {token.x.data(), DataType::bfloat16, {1, kHidden}},
          .topk_idx = {token.ids.data(), {1, 2}},
          .topk_weights = {token.weights.data(), {1, 2}}};
}

TEST(LaunchShapes, OfADispatchAreAlikeWhereRanksDoNotDivideTheExperts) {
  expect_one_shape([](World& world) {
    const Token token;
    ExpertParallel exchange(world,
                            {.experts = kExperts, .hidden = kHidden, .topk = 2, .tokens_max = 4});
    exchange.dispatch(input_of(token));
  });
}

TEST(LaunchShapes, OfADispatchByExpertAreAlikeWhereRanksDoNotDivideTheExperts) {
  expect_one_shape([](World& world) {
    const Token token;
    ExpertParallel exchange(world,
                            {.experts = kExperts, .hidden = kHidden, .topk = 2, .tokens_max = 4});
    exchange.dispatch_by_expert(input_of(token), {});
  });
}

TEST(LaunchShapes, OfALowLatencyPairAreAlikeWhereRanksDoNotDivideTheExperts) {
  expect_one_shape([](World& world) {
    const Token token;
    LowLatency exchange(world,
                        {.experts = kExperts, .hidden = kHidden, .topk = 2, .tokens_max = 4});
    const LowLatencyReceived received =
        exchange.dispatch({.x = {token.x.data(), DataType::bfloat16, {1, kHidden}},
                           .topk_idx = {token.ids.data(), {1, 2}},
                           .topk_weights = {token.weights.data(), {1, 2}},
                           .rows = LowLatencyRows::bf16});
    alignas(16) std::array<uint16_t, kHidden> out{};
    exchange.combine({.y = received.x, .out = {out.data(), DataType::bfloat16, {1, kHidden}}},
                     received.handle);
    exchange.wait();
    exchange.close();
  });
}

}  // namespace
}  // namespace tokenyard::test
