/// Which sums of a combine wait for other ranks' weights.
#include <algorithm>
#include <chrono>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/staged_pieces.hpp"

namespace tokenyard::test {
namespace {

/// Ranks make the sending parts of their combines one after another: a rank that waited for
/// another's weights would wait in vain.
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
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

/// The dispatches have published all weights.
TEST(LowLatencyEarlyWeights, ACombineSendsWithoutTheOthers) {
  send_one_after_the_other({.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 3},
                            .tokens = {7, 3, 5},
                            .early_weights = 0b111});
}

/// The owner weights them.
TEST(LowLatencyRowsThatAreAlone, LeaveWithoutTheWeightsOfTheOthers) {
  send_one_after_the_other(
      {.shape = {.ranks = 3, .experts = 9, .hidden = 64, .topk = 1}, .tokens = {7, 3, 5}});
}

constexpr uint16_t kOne = 0x3f80, kOneAndAHalf = 0x3fc0, kTwo = 0x4000, kThree = 0x4040;

/// Tokens of rank 0. Its own experts, 0 and 1, produce rows of ones; rank 1's, 2 and 3, rows of
/// threes. Rank 0 publishes its weights only when rank 1 has sent all that needs none.
struct LateWeights {
  uint32_t topk, hidden;
  std::vector<int32_t> ids;    ///< [tokens, topk]
  std::vector<float> weights;  ///< likewise

  uint32_t tokens() const { return static_cast<uint32_t>(ids.size()) / topk; }
  /// Returns the results, by channel. `rows`: rows of rank 1 that need no weights and must leave
  /// first, at least.
  std::vector<uint16_t> combine(uint32_t rows) const {
    std::vector<uint16_t> out(tokens() * hidden);
    const auto all = World::in_process(2, "host", {.arena_bytes = size_t{2} << 20});
    expect_none_failed(run_ranks(all, [&](World& world) { combine_on(world, rows, out); }));
    return out;
  }

 private:
  void combine_on(World& world, uint32_t rows, std::vector<uint16_t>& out) const {
    const bool owner = world.rank() == 0;
    LowLatency exchange(world,
                        {.experts = 4, .hidden = hidden, .topk = topk, .tokens_max = tokens()});
    const std::vector<uint16_t> x(tokens() * hidden, kOne);
    const uint32_t given = owner ? tokens() : 0;
    const LowLatencyReceived received =
        exchange.dispatch({.x = {x.data(), DataType::bfloat16, {given, hidden}},
                           .topk_idx = {ids.data(), {given, topk}},
                           .rows = LowLatencyRows::bf16},
                          {});
    const TensorView y = exchange.combine_buffer(received.handle);
    std::fill_n(y.as<uint16_t>(), 2 * 2 * tokens() * hidden,
                owner ? kOne : kThree);  // Two experts.
    if (owner) {
      const size_t pieces = rows * hidden / 8;
      EXPECT_GE(await_staged_pieces(world, 0, kThree, pieces).size(), pieces)
          << "no weight is published yet";
      EXPECT_EQ(staged_pieces(world, 0, kOneAndAHalf).size(), 0u);
    }
    exchange.combine({.y = y,
                      .topk_weights = {weights.data(), {given, topk}},
                      .out = {out.data(), DataType::bfloat16, {given, hidden}}},
                     received.handle, {.hook = true});
    exchange.receive(received.handle);
    exchange.wait();
    exchange.close();
  }
};

/// The second rank has a sum to make of each of the first two tokens and a row to send of each
/// other: a sending block has one of each kind.
TEST(LowLatencyRowsThatAreAlone, LeaveBeforeSumsThatAwaitWeights) {
  const LateWeights late{.topk = 3,
                         .hidden = 1024,
                         .ids = {0, 2, 3, 0, 2, 3, 0, 1, 2, 0, 1, 2},
                         .weights = {0.5f, 0.25f, 0.25f, 0.5f, 0.25f, 0.25f,  //
                                     0.25f, 0.25f, 0.5f, 0.25f, 0.25f, 0.5f}};
  EXPECT_EQ(late.combine(2), std::vector<uint16_t>(4 * late.hidden, kTwo));
}

/// Sixteen tokens fill a warp, which has two rows of each token but one: every seventeenth,
/// whatever the stride of a warp's tokens. The hoisted row precedes thirty others.
TEST(LowLatencyRowsThatAreAlone, FillAWarpWithOthers) {
  LateWeights late{.topk = 2, .hidden = 64, .ids = {}, .weights = {}};
  std::vector<uint16_t> expected;
  for (uint32_t token = 0; token < 96; ++token) {
    const bool alone = token % 17 == 5;
    late.ids.insert(late.ids.end(), {2, alone ? 0 : 3});
    late.weights.insert(late.weights.end(), {0.25f, 0.25f});
    expected.insert(expected.end(), late.hidden, alone ? kOne : kOneAndAHalf);
  }
  EXPECT_EQ(late.combine(1), expected);
}

}  // namespace
}  // namespace tokenyard::test
