/// Ranks that come back: calls in progress meanwhile end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "base/refused.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "expert_parallel/staged_pieces.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

const LowLatencyCase kCase{.shape = {.ranks = 3, .experts = 6, .hidden = 64, .topk = 3},
                           .tokens = {5, 4, 6}};

std::string difference(LowLatency& exchange, uint32_t seed) {
  LowLatencyCase of = kCase;
  of.seed = seed;
  return difference_after_batch(exchange, of, of.draw());
}

/// A way to clear masks. All ranks have made equally many calls.
using Way = std::function<void(LowLatency&)>;
const std::vector<Way> kWays{
    [](LowLatency& exchange) { exchange.restart(agreed_epoch(exchange) + 3); },
    [](LowLatency& exchange) { exchange.clear_mask(); },
    [](LowLatency& exchange) {
      World& world = exchange.world();
      for (uint32_t rank = 0; rank < world.size(); ++rank)
        if (rank != world.rank()) exchange.update_mask(rank, false);
    }};

void clear_masks(LowLatency& exchange, const Way& way) {
  World& world = exchange.world();
  exchange.wait();
  world.barrier("all are idle");
  way(exchange);
  world.barrier("all masks are cleared");
}

class LowLatencyRestart : public OnDevice {};

/// Batches end even if nothing is wrong with them: a rank cannot know what others lack.
TEST_P(LowLatencyRestart, EndsTheBatchesUnderWay) {
  expect_none_failed(run_ranks(worlds(kCase.shape.ranks), [&](World& world) {
    LowLatency exchange(world, kCase.options());
    const std::vector<Tokens> all = kCase.draw();
    const Tokens& mine = all[world.rank()];
    const LowLatencyTokens tokens(world, kCase, mine);
    const CombineOnDevice combined(exchange, kCase, mine);
    for (const Way& way : kWays) {
      const LowLatencyReceived one = exchange.dispatch(tokens.input());
      const LowLatencyReceived other = exchange.dispatch(tokens.input());
      const LowLatencyCombine what = combined.what(exchange.combine_buffer(one.handle), tokens);
      clear_masks(exchange, way);
      try {
        exchange.combine(what, one.handle);
        ADD_FAILURE() << "it was not ended";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument, "handle");
        EXPECT_EQ(error.expected, "a batch that was dispatched");
        EXPECT_EQ(error.seen, "a batch that ended when ranks were unmasked or calls restarted");
      }
      EXPECT_EQ(refused([&] { exchange.combine(what, other.handle); }), "handle");
      EXPECT_EQ(refused([&] { exchange.combine_buffer(other.handle); }), "handle");
      // Their memory serves other batches, which the end of the old handles does not affect.
      const LowLatencyReceived third = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, 2), "");
      EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, third), "");
    }
    EXPECT_EQ(difference(exchange, 3), "");
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

/// Calls of which only the sending part was made: their hooks will never be called.
TEST_P(LowLatencyRestart, EndsCallsWhoseHooksWereNotCalled) {
  expect_none_failed(run_ranks(worlds(kCase.shape.ranks), [&](World& world) {
    LowLatency exchange(world, kCase.options());
    const LowLatencyTokens tokens(world, kCase, kCase.draw()[world.rank()]);
    const CombineOnDevice combined(exchange, kCase, kCase.draw()[world.rank()]);
    const LowLatencyCall sends{.hook = true};
    const LowLatencyReceived combining = exchange.dispatch(tokens.input());
    exchange.combine(combined.what(exchange.combine_buffer(combining.handle), tokens),
                     combining.handle, sends);
    LowLatencyReceived kept = exchange.dispatch(tokens.input(), sends);
    if (world.rank() == 1) kept.handle.reset();
    EXPECT_EQ(refused([&] { exchange.clear_mask(); }), "hook") << "calls are not as many";
    clear_masks(exchange, kWays[0]);
    EXPECT_EQ(refused([&] { exchange.receive(combining.handle); }), "handle");
    EXPECT_EQ(refused([&] { exchange.receive(kept.handle); }), "handle");
    for (uint32_t seed = 2; seed < 5; ++seed) EXPECT_EQ(difference(exchange, seed), "");
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

TEST_P(LowLatencyRestart, IsNotNeededToCloseWithAHookThatWasNotCalled) {
  expect_none_failed(run_ranks(worlds(kCase.shape.ranks), [&](World& world) {
    const size_t before = arena_of(world).used();
    {
      LowLatency exchange(world, kCase.options());
      const LowLatencyTokens tokens(world, kCase, kCase.draw()[world.rank()]);
      exchange.dispatch(tokens.input(), {.hook = true});
      exchange.close();
    }
    await_all(accelerator_of(world));  // Memory is freed in stream order.
    EXPECT_EQ(arena_of(world).used(), before);
  }));
}

INSTANTIATE_ON_DEVICES(LowLatencyRestart);

/// Two ranks: the first has a token for the other's expert. A piece of the token's row arrives too
/// late, so the other delivers zeros in its place and masks the first.
class TaintedBatch {
 public:
  static constexpr uint32_t kHidden = 64;
  static constexpr uint16_t kThree = 0x4040;

  explicit TaintedBatch(World& world)
      : exchange(world, {.experts = 2, .hidden = kHidden, .topk = 1, .tokens_max = 1}),
        world_(world),
        owner_(world.rank() == 0),
        x_(kHidden, kThree),
        out(kHidden, 0xeeee) {}

  void send() {
    received = exchange.dispatch({.x = {x_.data(), DataType::bfloat16, {tokens_, kHidden}},
                                  .topk_idx = {ids_.data(), {tokens_, 1}},
                                  .topk_weights = {weights_.data(), {tokens_, 1}},
                                  .rows = LowLatencyRows::bf16},
                                 call());
  }
  void receive() { exchange.receive(received.handle); }
  void lose_a_piece() {
    world_.barrier("the row is on its way");
    if (!owner_) {
      const std::vector<std::byte*> pieces = staged_pieces(world_, 1, kThree);
      ASSERT_EQ(pieces.size(), kHidden / 8);
      std::memset(pieces[3], 0xff, 16);
    }
    world_.barrier("a piece of it is lost");
  }
  void require_taint() const {
    EXPECT_EQ(exchange.failed_ranks().size(), owner_ ? 0u : 1u);
    if (owner_) return;
    EXPECT_EQ(received.counts.as<int32_t>()[0], 1);
    EXPECT_EQ(received.x.as<uint16_t>()[3 * 8], 0);
  }
  void combine() {
    exchange.combine({.y = received.x,
                      .out = {out.data(), DataType::bfloat16, {tokens_, kHidden}},
                      .lost = {&lost, {tokens_}}},
                     received.handle, call());
  }
  /// Requires that no wrong number counts.
  void require_exact_or_lost() const {
    if (owner_ && lost == 0) {
      EXPECT_EQ(out, x_);
    }
  }

  LowLatency exchange;
  LowLatencyReceived received;

 private:
  static LowLatencyCall call() { return {.timeout = std::chrono::milliseconds(200), .hook = true}; }

  World& world_;
  const bool owner_;
  const uint32_t tokens_ = owner_ ? 1 : 0;
  const std::vector<uint16_t> x_;
  const std::vector<int32_t> ids_{1};
  const std::vector<float> weights_{1};

 public:
  std::vector<uint16_t> out;
  int32_t lost = 0;
};

void combine_after(const Way& way, World& world) {
  TaintedBatch batch(world);
  batch.send();
  batch.lose_a_piece();
  batch.receive();
  batch.require_taint();
  clear_masks(batch.exchange, way);
  const std::string refused_for = refused([&] { batch.combine(); });
  EXPECT_EQ(refused_for, "handle");
  if (refused_for == "nothing") {
    batch.receive();
    batch.require_exact_or_lost();
  }
  world.barrier("the end");
}

/// A rank was stopped in the middle of a dispatch and resumed: its rows were counted although some
/// were zeros, and once no rank was masked any more a combine took their sums for exact.
TEST(LowLatencyTaint, OfABatchIsNotForgottenWithTheMask) {
  for (const Way& way : kWays) {
    const auto all = World::in_process(2, "host", {.arena_bytes = size_t{1} << 20});
    expect_none_failed(run_ranks(all, [&](World& world) { combine_after(way, world); }));
  }
}

void replay_combine_after(const Way& way, World& world) {
  TaintedBatch batch(world);
  const auto record = [&](const std::function<void()>& body) {
    return recording_accelerator(world).record(body);
  };
  const auto send = record([&] { batch.send(); });
  const auto receive = record([&] { batch.receive(); });
  const auto combine = record([&] {
    batch.combine();
    batch.receive();
  });
  send();
  batch.lose_a_piece();
  receive();
  batch.require_taint();
  clear_masks(batch.exchange, way);
  combine();
  batch.require_exact_or_lost();
  world.barrier("the end");
}

/// The same with a captured combine, replayed without its dispatch: the host sees no handle there.
TEST(LowLatencyTaint, IsNotForgottenByReplays) {
  for (const Way& way : kWays) {
    const auto all = recording_worlds(2, {.arena_bytes = size_t{1} << 20});
    expect_none_failed(run_ranks(all, [&](World& world) { replay_combine_after(way, world); }));
  }
}

}  // namespace
}  // namespace tokenyard::test
