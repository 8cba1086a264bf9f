// Messages between pairs of ranks: all_to_all with a size per pair, and send and receive.
#include <gtest/gtest.h>

#include <cstdlib>

#include "collectives/device/host/call_log.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/lonely_rank.hpp"
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
    EXPECT_EQ(argument_of([&] { collectives.exchange({}, {{view, world.rank()}}); }), "from");
    EXPECT_EQ(argument_of([&] { collectives.exchange({}, {{view, 2}}); }), "from");
    EXPECT_EQ(argument_of([&] {
                collectives.exchange({{view, world.rank(), 1}}, {{view, world.rank(), 2}});
              }),
              "tag");
    EXPECT_EQ(argument_of([&] {
                collectives.exchange({{view, world.rank()}}, {{tensor.view({11}), world.rank()}});
              }),
              "tensor");
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

// The part for an empty slot takes its place in the input, too.
TEST_P(DeviceMessagesTest, SplitsForEmptySlotsCountInTheInput) {
  const auto all = worlds(3, {1});
  const Outcomes outcomes = run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    const DeviceArray<float> input(accelerator_of(world), 6), result(accelerator_of(world), 6);
    const std::vector<int64_t> parts{2, world.rank() == 2 ? 3 : 2, 2};
    const DeviceArray<int64_t> splits(accelerator_of(world), parts);
    const DeviceArray<int64_t> came(accelerator_of(world), 3);
    collectives.all_to_all(input.view({6}), result.view({6}),
                           {.sent = splits.data(), .received = came.data()});
    collectives.wait();
  });
  for (const uint32_t rank : {0u, 2u}) {
    const auto error = error_of<InvalidArgument>(outcomes[rank]);
    EXPECT_EQ(error.argument, "splits");
    EXPECT_EQ(error.rank, 2u);
  }
}

TEST_P(DeviceMessagesTest, AnotherMessageIsRefusedByItsReceiver) {
  if (GetParam() != "host") GTEST_SKIP() << "ranks that share a GPU have no messages";
  const auto all = worlds(2);
  const Outcomes outcomes = run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    const DeviceArray<float> tensor(accelerator_of(world), 12);
    if (world.rank() == 0)
      collectives.exchange({{tensor.view({12}), 1, 3}}, {});
    else
      collectives.exchange({}, {{tensor.view({12}), 0, 4}});
    collectives.wait();
  });
  EXPECT_FALSE(outcomes[0]) << message_of(outcomes[0]);
  const auto error = error_of<InvalidArgument>(outcomes[1]);
  EXPECT_EQ(error.expected, "48 bytes of float32 with tag 4");
  EXPECT_EQ(error.seen, "48 bytes of float32 with tag 3");
}

// A message to oneself is a copy in stream order, beside messages with others.
TEST_P(DeviceMessagesTest, ARankSendsToItselfWithinACall) {
  if (GetParam() != "host") GTEST_SKIP() << "ranks that share a GPU have no messages";
  const auto all = worlds(2);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    const uint32_t self = world.rank(), peer = 1 - self;
    const auto mine = static_cast<int32_t>(self);
    const DeviceArray<int32_t> sent(accelerator_of(world), std::vector<int32_t>{mine, 7, mine + 5});
    const DeviceArray<int32_t> came(accelerator_of(world), 3);
    const auto at = [](const DeviceArray<int32_t>& array, uint64_t i) {
      return TensorView{array.data() + i, DataType::int32, {1}};
    };
    collectives.exchange({{at(sent, 0), peer}, {at(sent, 1), self, 3}, {at(sent, 2), self}},
                         {{at(came, 0), self, 3}, {at(came, 1), self}, {at(came, 2), peer}});
    collectives.wait();
    EXPECT_EQ(came.read(), (std::vector<int32_t>{7, mine + 5, 1 - mine}));
    collectives.close();
  }));
}

// Replays of a graph that was captured before ranks went on find no word that they await, and its
// messages fail at once.
TEST(RetiredGraphs, AwaitNoOtherRanksWord) {
  for (const uint64_t launches : {uint64_t{0}, uint64_t{77}, uint64_t{UINT32_MAX}})
    for (uint32_t rank = 0; rank < 4096; rank += 5)
      for (const uint32_t other : {rank + 1, rank ^ 64, 4095u}) {
        if (other == rank || other > 4095) continue;
        const uint64_t mine = device_collectives::retired_epoch(launches, rank);
        const uint64_t theirs = device_collectives::retired_epoch(launches + 1, other);
        const auto apart = static_cast<int32_t>(static_cast<uint32_t>(mine - theirs));
        ASSERT_GT(std::abs(int64_t{apart}), 500'000) << rank << ", " << other;
        ASSERT_NE(mine >> 32, theirs >> 32);
        ASSERT_GT(static_cast<uint32_t>(mine - launches), 500'000u);
      }
}

TEST(RetiredGraphs, MessagesFailWithoutAWait) {
  LonelyRank rank;
  std::vector<uint64_t> counters(channel_words(2));
  counters.back() = 1;
  auto params = std::make_unique<MessagesParams>();
  params->call = rank.params();
  params->channels = counters.data();
  rank.loads_in(messages_kernel, *params);
  EXPECT_EQ(rank.failure(), Failure::abort_flag);
}

INSTANTIATE_ON_DEVICES(DeviceMessagesTest);

}  // namespace
}  // namespace tokenyard::test
