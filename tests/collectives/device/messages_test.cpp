// Messages between pairs of ranks: all_to_all with a size per pair, and send and receive.
#include <gtest/gtest.h>

#include "collectives/device/message_case.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

class DeviceMessagesTest : public OnDevice {};

/// Returns a round in which every rank sends to every other one, up to `bytes_max`.
MessageRound round_of(uint32_t ranks, uint32_t bytes_max, bool collective, uint64_t seed) {
  simulation::Random random(seed);
  return MessageRound::drawn(random, ranks, bytes_max, collective);
}

TEST_P(DeviceMessagesTest, PartsOfAnySizeAreExchanged) {
  for (const uint32_t ranks : {1u, 2u, 3u, 6u}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(world, {.chunk_bytes = 64, .ring_bytes = 192});
      for (const uint32_t bytes_max : {0u, 1u, 63u, 2000u}) {
        StartedRound round(world, round_of(ranks, bytes_max, true, bytes_max + ranks));
        round.start(collectives, {});
        collectives.wait();
        EXPECT_EQ(round.difference(), "") << ranks << " ranks, rank " << world.rank();
      }
      collectives.close();
    }));
  }
}

TEST_P(DeviceMessagesTest, MessagesOfARoundWaitForNoOtherOne) {
  if (GetParam() != "host") GTEST_SKIP() << "ranks that share a GPU have no messages";
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(world, {.chunk_bytes = 64, .ring_bytes = 64});
      for (uint64_t seed = 0; seed < 12; ++seed) {
        StartedRound round(world, round_of(ranks, seed % 2 == 0 ? 900 : 20, false, seed));
        round.start(collectives, {});
        collectives.wait();
        EXPECT_EQ(round.difference(), "") << ranks << " ranks, rank " << world.rank();
      }
      collectives.close();
    }));
  }
}

// Pairs that differ are named alike on all ranks; arrays may be freed as soon as the call failed.
TEST_P(DeviceMessagesTest, APairThatDiffersIsNamedOnAllRanks) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto all = worlds(4);
    const Outcomes outcomes = run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(world, {.chunk_bytes = 16, .ring_bytes = 32});
      MessageRound round = round_of(4, 900, true, seed);
      const uint32_t bytes = round.bytes_between(2, 1);
      if (world.rank() == 1) round.bytes[2 * 4 + 1] = bytes + 1;
      StartedRound started(world, round);
      started.start(collectives, {});
      collectives.wait();
    });
    for (const std::exception_ptr& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, "received");
      EXPECT_EQ(error.rank, 1u);
    }
  }
}

TEST_P(DeviceMessagesTest, WrongMessagesAreNamedBeforeAnythingIsSent) {
  if (GetParam() != "host") GTEST_SKIP() << "ranks that share a GPU have no messages";
  const auto all = worlds(2);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    const DeviceArray<float> tensor(accelerator_of(world), 12);
    const uint32_t peer = 1 - world.rank();
    const auto argument_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const InvalidArgument& error) {
        return error.argument;
      }
      return "none";
    };
    const TensorView view = tensor.view({12});
    EXPECT_EQ(argument_of([&] { collectives.exchange({{view, world.rank()}}, {}); }), "to");
    EXPECT_EQ(argument_of([&] { collectives.exchange({}, {{view, 2}}); }), "from");
    EXPECT_EQ(argument_of([&] {
                collectives.exchange({{view, peer, device_collectives::kTags}}, {});
              }),
              "tag");
    EXPECT_EQ(argument_of([&] { collectives.exchange({{{}, peer}}, {}); }), "tensor");
    const std::vector<device_collectives::Send> many(49, {view, peer});
    EXPECT_EQ(argument_of([&] { collectives.exchange(many, {}); }), "messages");
    collectives.close();
  }));
}

INSTANTIATE_ON_DEVICES(DeviceMessagesTest);

}  // namespace
}  // namespace tokenyard::test
