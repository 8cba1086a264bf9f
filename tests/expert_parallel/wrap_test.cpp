/// Exchanges of which a test makes the first calls just before their epochs wrap.
#include <fmt/format.h>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/host/epochs.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kLast = 0xffffffff;

TEST(Epochs, AlternateInParityAndAreNeverZero) {
  using throughput::epoch_after;
  uint32_t epoch = kLast - 5;
  for (uint32_t call = 0; call < 12; ++call) {
    const uint32_t next = epoch_after(epoch);
    EXPECT_NE(next, 0u);
    EXPECT_NE(next & 1, epoch & 1) << epoch;
    epoch = next;
  }
  EXPECT_LT(epoch, 12u);
  EXPECT_EQ(epoch_after(0), 1u);
}

/// The words of calls that were never made are zero.
TEST(Epochs, AreNoStampOfWordsThatNobodyWrote) {
  using low_latency::IdsStamp;
  for (const uint32_t epoch : {0u, 1u, 1u << 29, 1u << 30, 1u << 31, kLast}) {
    EXPECT_NE(low_latency::weights_stamp(epoch), 0u);
    EXPECT_NE(low_latency::weights_stamp(epoch), low_latency::weights_stamp(epoch - 1));
    EXPECT_EQ(low_latency::epoch_of_weights(low_latency::weights_stamp(epoch)), epoch % (1u << 31));
    for (uint32_t format = 0; format < IdsStamp::kFormats; ++format) {
      const IdsStamp stamp = IdsStamp::of(epoch, format);
      EXPECT_NE(stamp.word, 0u);
      EXPECT_EQ(stamp.format(), format);
      EXPECT_EQ(stamp.epoch(), epoch % (1u << 29));
      EXPECT_FALSE(stamp == IdsStamp::of(epoch - 1, format));
      EXPECT_FALSE(stamp.differs_in_format(IdsStamp::of(epoch - 1, format ^ 1)));
      EXPECT_TRUE(stamp.differs_in_format(IdsStamp::of(epoch, format ^ 1)));
      EXPECT_FALSE(IdsStamp{0}.differs_in_format(stamp));
    }
  }
}

TEST(Epochs, OfTheLastCallIsTheLatestAcrossTheWrap) {
  using low_latency::Epochs, low_latency::Kind;
  for (const uint32_t begin : {0u, 0x7fffffffu, kLast - 1, kLast}) {
    low_latency::Workspace workspace = Epochs::counting_from(begin);
    EXPECT_EQ(Epochs::last_of(workspace), begin);
    for (uint32_t kind = 0; kind < low_latency::kKinds; ++kind) {
      uint32_t& sent = workspace.progress[kind][0].sent;
      uint32_t& received = workspace.progress[kind][0].received;
      received = Epochs::last_of(workspace) + 1;
      EXPECT_EQ(Epochs::last_of(workspace), received);
      sent = received + 2;
      EXPECT_EQ(Epochs::last_of(workspace), sent);
    }
  }
}

class Wrap : public OnDevice {
 protected:
  /// Returns worlds whose exchanges count from `before` on.
  std::vector<std::unique_ptr<World>> worlds_from(uint32_t before, uint32_t ranks) const {
    auto all = worlds(ranks);
    for (const auto& world : all) epoch_before(*world) = before;
    return all;
  }
};

TEST_P(Wrap, OfEpochsDisturbsNoThroughputCall) {
  const ExchangeCase of{
      .shape = {.ranks = 3, .experts = 6, .hidden = 64, .topk = 2}, .tokens = {9, 0, 14}, .sms = 2};
  for (const uint32_t before : {kLast, kLast - 1, kLast - 4, 0x7fffffffu}) {
    SCOPED_TRACE(before);
    expect_none_failed(run_ranks(worlds_from(before, of.shape.ranks), [&](World& world) {
      ExpertParallel exchange(world, of.options());
      ExchangeCase drawn = of;
      for (uint32_t call = 0; call < 6; ++call) {
        drawn.seed = call + 1;
        const std::vector<Tokens> all = drawn.draw();
        const Tokens& mine = all[world.rank()];
        const Expected expected = expected_on(of.shape, all, world.rank());
        const TokensOnDevice tokens(accelerator_of(world), mine, true);
        const Received received = exchange.dispatch(tokens.input());
        EXPECT_EQ(difference(exchange, received, expected), "") << "call " << call;
        EXPECT_EQ(difference_after_combine(exchange, received, of.shape, mine, expected,
                                           {.in_place = false, .with_weights = true, .call = call}),
                  "")
            << "call " << call;
      }
    }));
  }
}

TEST_P(Wrap, OfEpochsDisturbsNoLowLatencyCall) {
  LowLatencyCase of{.shape = {.ranks = 3, .experts = 6, .hidden = 64, .topk = 3},
                    .tokens = {5, 4, 6}};
  for (const uint32_t before : {kLast, kLast - 1, kLast - 4, 0x7fffffffu, 0x1fffffffu})
    for (const LowLatencyRows rows : {LowLatencyRows::bf16, LowLatencyRows::fp8}) {
      SCOPED_TRACE(before);
      of.rows = rows;
      expect_none_failed(run_ranks(worlds_from(before, of.shape.ranks), [&](World& world) {
        LowLatency exchange(world, of.options());
        LowLatencyCase drawn = of;
        const auto exchange_batches = [&](uint32_t batches) {
          for (uint32_t batch = 0; batch < batches; ++batch) {
            drawn.seed += 1;
            drawn.hooks = batch % 2 != 0;
            EXPECT_EQ(difference_after_batch(exchange, drawn, drawn.draw()), "");
          }
        };
        exchange_batches(3);
        EXPECT_EQ(exchange.epoch(), before + 3);
        exchange.wait();
        exchange.restart(agreed_epoch(exchange));
        world.barrier("all have restarted");
        exchange_batches(3);
        EXPECT_TRUE(exchange.failed_ranks().empty());
      }));
    }
}

INSTANTIATE_ON_DEVICES(Wrap);

}  // namespace
}  // namespace tokenyard::test
