/// Which sums of a combine wait for the weights of others, and which do not.
#include <algorithm>
#include <chrono>

#include "expert_parallel/low_latency_checks.hpp"
#include "expert_parallel/low_latency_survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/staged_pieces.hpp"

namespace tokenyard::test {
namespace {

/// Ranks send their halves of a combine one after the other: a rank that waited for another's
/// weights would wait in vain.
void send_one_after_the_other(const LowLatencyCase& of) {
  const WorldOptions options{.timeout = std::chrono::seconds(20), .arena_bytes = size_t{4} << 20};
  expect_none_failed(run_ranks(World::in_process(3, "host", options), [&](World& world) {
    LowLatency exchange(world, of.options());
    Survivor all_live(exchange, std::nullopt);
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

/// All weights were told by the dispatches.
TEST(LowLatencyEarlyWeights, ACombineSendsWithoutTheOthers) {
  send_one_after_the_other({.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 3},
                            .tokens = {7, 3, 5},
                            .early_weights = 0b111});
}

/// The owner weighs them.
TEST(LowLatencyRowsThatAreAlone, LeaveWithoutTheWeightsOfTheOthers) {
  send_one_after_the_other(
      {.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 1}, .tokens = {7, 3, 5}});
}

/// A lane has a row each, and one leaves before the others.
TEST(LowLatencyRowsThatAreAlone, FillAWarp) {
  const LowLatencyCase of{.shape = {.ranks = 2, .experts = 2, .hidden = 64, .topk = 1},
                          .tokens = {96, 96},
                          .picking = {.one_expert = true}};
  const WorldOptions options{.arena_bytes = size_t{8} << 20};
  expect_none_failed(run_ranks(World::in_process(2, "host", options), [&](World& world) {
    LowLatency exchange(world, of.options());
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw()), "");
    exchange.close();
  }));
}

/// Of the first two tokens the second rank has a sum to make, of the others a row to send: a block
/// that sends has one of each.
TEST(LowLatencyRowsThatAreAlone, LeaveBeforeSumsThatAwaitWeights) {
  constexpr uint32_t kTokens = 4, kHidden = 1024;
  constexpr uint16_t kOne = 0x3f80, kOneAndAHalf = 0x3fc0, kTwo = 0x4000, kThree = 0x4040;
  const std::vector<int32_t> ids{0, 2, 3, 0, 2, 3, 0, 1, 2, 0, 1, 2};
  const std::vector<float> weights{0.5f,  0.25f, 0.25f, 0.5f,  0.25f, 0.25f,
                                   0.25f, 0.25f, 0.5f,  0.25f, 0.25f, 0.5f};
  const auto all = World::in_process(2, "host", {.arena_bytes = size_t{1} << 20});
  expect_none_failed(run_ranks(all, [&](World& world) {
    const bool owner = world.rank() == 0;
    LowLatency exchange(world, {.experts = 4, .hidden = kHidden, .topk = 3, .tokens_max = kTokens});
    const std::vector<uint16_t> x(kTokens * kHidden, kOne);
    const LowLatencyReceived received = exchange.dispatch({.x = x.data(),
                                                           .topk_idx = ids.data(),
                                                           .idx_is_int64 = false,
                                                           .tokens = owner ? kTokens : 0,
                                                           .rows = LowLatencyRows::bf16},
                                                          {});
    auto* const y = static_cast<uint16_t*>(exchange.combine_buffer(received.handle));
    std::fill_n(y, 2 * 2 * kTokens * kHidden, owner ? kOne : kThree);  // Of two experts.
    std::vector<uint16_t> out(kTokens * kHidden);
    const auto combine = [&] {
      exchange.combine({.y = y, .weights = weights.data(), .out = out.data()}, received.handle,
                       {.hook = true});
    };
    if (!owner) combine();
    if (owner) {
      constexpr size_t kPieces = 2 * kHidden / 8;
      EXPECT_EQ(await_staged_pieces(world, 0, kThree, kPieces).size(), kPieces)
          << "no weight is told yet";
      EXPECT_EQ(staged_pieces(world, 0, kOneAndAHalf).size(), 0u);
      combine();
    }
    exchange.receive(received.handle);
    exchange.wait();
    if (owner) {
      EXPECT_EQ(out, std::vector<uint16_t>(kTokens * kHidden, kTwo));
    }
    exchange.close();
  }));
}

}  // namespace
}  // namespace tokenyard::test
