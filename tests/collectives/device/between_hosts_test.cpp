// Collectives on device tensors among ranks of several hosts, over simulated network cards: every
// operation over types, sizes, places and shapes of hosts, compared bit for bit with the arithmetic
// of the collectives on CPU tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/device/call_case.hpp"
#include "collectives/device/message_case.hpp"
#include "expert_parallel/ranks.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::test {
namespace {

using Hosts = std::vector<uint32_t>;  ///< [ranks] host of each

constexpr Operation kOperations[] = {
    Operation::barrier,   Operation::all_reduce,     Operation::reduce,
    Operation::broadcast, Operation::all_gather,     Operation::gather,
    Operation::scatter,   Operation::reduce_scatter, Operation::all_to_all};
constexpr DataType kTypes[] = {DataType::boolean, DataType::uint8,        DataType::int8,
                               DataType::uint16,  DataType::int16,        DataType::uint32,
                               DataType::int32,   DataType::uint64,       DataType::int64,
                               DataType::float16, DataType::bfloat16,     DataType::float32,
                               DataType::float64, DataType::float8_e4m3fn};

bool is_float(DataType type) {
  return type == DataType::float8_e4m3fn || type == DataType::float16 ||
         type == DataType::bfloat16 || type == DataType::float32 || type == DataType::float64;
}

/// Ring slots of 256 bytes, and greetings with up to 64 bytes of data.
constexpr device_collectives::Options kSmall{.slot_bytes = 64, .chunk_bytes = 256};

struct Conditions {
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  std::vector<uint32_t> absent = {};
  uint32_t queues_per_peer = 4;
};

Outcomes run(const Hosts& host_of, const Body& body, const Conditions& conditions = {}) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (size_t rank = 0; rank < host_of.size(); ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  for (const uint32_t rank : conditions.absent) accelerators[rank] = nullptr;
  return run_ranks(
      join_all(accelerators, std::make_shared<InProcessFabric>(host_of),
               {.timeout = conditions.timeout, .arena_bytes = size_t{64} << 20},
               {.run = cards_on_threads(), .queues_per_peer = conditions.queues_per_peer}),
      body);
}

class DeviceCollectivesBetweenHosts : public testing::TestWithParam<Hosts> {};

TEST_P(DeviceCollectivesBetweenHosts, EveryOperationBringsTheReferencesBytes) {
  const Hosts host_of = GetParam();
  const auto ranks = static_cast<uint32_t>(host_of.size());
  expect_none_failed(run(host_of, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    uint64_t seed = 0;
    for (const Operation operation : kOperations)
      for (const uint64_t elements : {0u, 1u, 7u, 301u, 2500u})
        for (const bool in_place : {false, true}) {
          ++seed;
          const CallCase of{.operation = operation,
                            .type = seed % 2 == 0 ? DataType::bfloat16 : DataType::float32,
                            .elements = elements,
                            .root = static_cast<uint32_t>(seed) % ranks,
                            .in_place = in_place,
                            .offset = static_cast<uint32_t>(seed % 4),
                            .seed = seed,
                            .call = {.sms = static_cast<uint32_t>(1 + (seed + world.rank()) % 3)},
                            .host_of = host_of};
          EXPECT_EQ(difference_after(world, collectives, of), "") << "rank " << world.rank();
        }
    collectives.close();
  }));
}

TEST_P(DeviceCollectivesBetweenHosts, EveryTypeIsReducedByEveryOperator) {
  const Hosts host_of = GetParam();
  expect_none_failed(run(host_of, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    for (const DataType type : kTypes)
      for (const ReduceOp op :
           {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max,
            ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
        if (is_float(type) ? op >= ReduceOp::bit_and : op == ReduceOp::average) continue;
        const uint64_t seed = static_cast<uint64_t>(type) * 8 + static_cast<uint64_t>(op);
        CallCase of{.operation = seed % 3 == 0 ? Operation::reduce_scatter : Operation::all_reduce,
                    .type = type,
                    .op = op,
                    .elements = seed % 2 == 0 ? 5u : 301u,
                    .seed = seed,
                    .host_of = host_of};
        EXPECT_EQ(difference_after(world, collectives, of), "");
        if (!is_float(type) || op != ReduceOp::sum) continue;
        of.factor = 1.0 / 3;
        EXPECT_EQ(difference_after(world, collectives, of), "");
      }
    collectives.close();
  }));
}

INSTANTIATE_TEST_SUITE_P(, DeviceCollectivesBetweenHosts,
                         testing::Values(Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2},
                                         Hosts{0, 1, 1, 1}, Hosts{0, 0, 1, 2, 2},
                                         Hosts{1, 0, 0, 1, 0}, Hosts{0, 0, 1, 1, 2, 2, 3}),
                         [](const auto& hosts) {
                           std::string name = "ranks_on";
                           for (const uint32_t host : hosts.param) name += fmt::format("_{}", host);
                           return name;
                         });

// Larger than all rings, by whole rows of a warp, with parts of an all_reduce on all ranks.
TEST(BetweenHosts, LargeMessagesTravelInChunks) {
  for (const Hosts& host_of : {Hosts{0, 1}, Hosts{0, 0, 1, 1}}) {
    expect_none_failed(run(host_of, [&](World& world) {
      DeviceCollectives collectives(world, {.chunk_bytes = 8 << 10});
      for (const Operation operation : kOperations)
        for (const uint64_t elements : {40'000u, 100'003u}) {
          const CallCase of{.operation = operation,
                            .type = elements % 2 == 0 ? DataType::float32 : DataType::bfloat16,
                            .elements = elements,
                            .in_place = elements % 2 == 0,
                            .seed = elements,
                            .host_of = host_of};
          EXPECT_EQ(difference_after(world, collectives, of), "") << "rank " << world.rank();
        }
      collectives.close();
    }));
  }
}

TEST(BetweenHosts, UnevenPartsAreGatheredAndReduced) {
  const Hosts host_of{0, 0, 1};
  expect_none_failed(run(host_of, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    const std::vector<uint64_t> counts{3, 0, 200};
    const uint64_t mine = counts[world.rank()];
    const DeviceArray<int32_t> input(
        accelerator_of(world), std::vector<int32_t>(mine, static_cast<int32_t>(world.rank()) + 1));
    const DeviceArray<int32_t> all(accelerator_of(world), 203), sum(accelerator_of(world), mine);
    collectives.all_gather(input.view({mine}), all.view({203}), counts);
    collectives.reduce_scatter(all.view({203}), sum.view({mine}), ReduceOp::sum, counts);
    collectives.wait();
    const std::vector<int32_t> gathered = all.read();
    for (size_t i = 0; i < gathered.size(); ++i) EXPECT_EQ(gathered[i], i < 3 ? 1 : 3);
    EXPECT_EQ(sum.read(), std::vector<int32_t>(mine, world.rank() == 0 ? 3 : 9));
    collectives.close();
  }));
}

TEST(BetweenHosts, ACallThatARankMakesOtherwiseIsNamedOnAllRanks) {
  for (const uint32_t differs : {1u, 4u})
    for (const uint64_t elements : {2u, 3000u}) {
      const Hosts host_of{0, 0, 1, 1, 2};
      const Outcomes outcomes = run(host_of, [&](World& world) {
        DeviceCollectives collectives(world, kSmall);
        const bool other = world.rank() == differs;
        CallCase of{.operation = other ? Operation::all_gather : Operation::all_reduce,
                    .elements = elements,
                    .host_of = host_of};
        StartedCall call(world, of);
        call.start(collectives);
        EXPECT_THROW(collectives.wait(), InvalidArgument);
        EXPECT_TRUE(call.untouched()) << world.rank();
        collectives.check();
      });
      for (const std::exception_ptr& outcome : outcomes) {
        const auto error = error_of<InvalidArgument>(outcome);
        EXPECT_EQ(error.argument, "call");
        EXPECT_EQ(error.expected, "all_reduce(sum) of float32, by rings as on rank 0");
        EXPECT_EQ(error.rank, differs);
      }
    }
}

TEST(BetweenHosts, ASilentRankIsNamedByAll) {
  for (const uint32_t silent : {0u, 3u}) {
    std::atomic<uint32_t> ended = 0;
    const Outcomes outcomes = run({0, 0, 1, 1}, [&](World& world) {
      DeviceCollectives collectives(world, kSmall);
      const DeviceArray<float> tensor(accelerator_of(world), 2000);
      if (world.rank() != silent) {
        const auto end = [&](auto) { ++ended; };
        const std::shared_ptr<void> at_end(nullptr, end);
        collectives.all_reduce(tensor.view({2000}), tensor.view({2000}), ReduceOp::sum,
                               {.timeout = std::chrono::seconds(2)});
        collectives.wait();
      }
      while (ended < 3) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    for (uint32_t rank = 0; rank < 4; ++rank)
      if (rank != silent) {
        EXPECT_EQ(error_of<PeerTimeout>(outcomes[rank]).facts.rank, silent) << rank;
      }
  }
}

TEST(BetweenHosts, WhatDoesNotExistThereIsRefused) {
  expect_none_failed(run({0, 1}, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    EXPECT_THROW(collectives.barrier({.protocol = Protocol::slots}), InvalidArgument);
    collectives.barrier();
    collectives.close();
  }));
}

MessageRound round_of(uint32_t ranks, uint32_t bytes_max, bool collective, uint64_t seed) {
  simulation::Random random(seed);
  return MessageRound::drawn(random, ranks, bytes_max, collective);
}

TEST_P(DeviceCollectivesBetweenHosts, PartsOfAnySizeAreExchanged) {
  const Hosts host_of = GetParam();
  const auto ranks = static_cast<uint32_t>(host_of.size());
  expect_none_failed(run(host_of, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    for (const uint32_t bytes_max : {0u, 1u, 63u, 6000u})
      for (const bool on_device : {false, true}) {
        MessageRound round = round_of(ranks, bytes_max, true, bytes_max + ranks);
        round.on_device = on_device;
        StartedRound started(world, round);
        started.start(collectives, {.sms = 1 + (bytes_max + world.rank()) % 3});
        collectives.wait();
        EXPECT_EQ(started.difference(), "") << "rank " << world.rank();
      }
    collectives.close();
  }));
}

// Messages go between hosts and inside them, larger than rings of two slots, between collectives.
TEST_P(DeviceCollectivesBetweenHosts, MessagesOfARoundWaitForNoOtherOne) {
  const Hosts host_of = GetParam();
  const auto ranks = static_cast<uint32_t>(host_of.size());
  expect_none_failed(run(host_of, [&](World& world) {
    DeviceCollectives collectives(world, {.chunk_bytes = 64, .ring_bytes = 128});
    for (uint64_t seed = 0; seed < 8; ++seed) {
      StartedRound round(world, round_of(ranks, seed % 2 == 0 ? 900 : 20, false, seed));
      round.start(collectives, {.sms = static_cast<uint32_t>(1 + (seed + world.rank()) % 2)});
      EXPECT_EQ(difference_after(
                    world, collectives,
                    {.operation = Operation::all_reduce, .elements = 90, .host_of = host_of}),
                "");
      collectives.wait();
      EXPECT_EQ(round.difference(), "") << ranks << " ranks, rank " << world.rank();
    }
    collectives.close();
  }));
}

TEST(BetweenHosts, APairThatDiffersIsNamedOnAllRanks) {
  const Hosts host_of{0, 0, 1, 2};
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Outcomes outcomes = run(host_of, [&](World& world) {
      DeviceCollectives collectives(world, kSmall);
      MessageRound round = round_of(4, 900, true, seed);
      if (world.rank() == 1) ++round.bytes[2 * 4 + 1];
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

// Splits that only the device knows are checked on all ranks before data move.
TEST(BetweenHosts, SplitsThatAreTooLargeAreNamedOnAllRanks) {
  for (const bool sends : {true, false}) {
    const Outcomes outcomes = run({0, 0, 1}, [&](World& world) {
      DeviceCollectives collectives(world, kSmall);
      const bool differs = world.rank() == 2;
      const uint64_t has = differs && sends ? 5 : 6, takes = differs && !sends ? 5 : 6;
      const DeviceArray<float> input(accelerator_of(world), has);
      const DeviceArray<float> result(accelerator_of(world), std::vector<float>(takes, 7));
      const DeviceArray<int64_t> splits(accelerator_of(world), std::vector<int64_t>{2, 2, 2});
      const DeviceArray<int64_t> came(accelerator_of(world), 3);
      collectives.all_to_all(input.view({has}), result.view({takes}),
                             {.sent = splits.data(), .received = came.data()});
      const std::shared_ptr<void> at_end(
          nullptr, [&](auto) { EXPECT_EQ(result.read(), std::vector<float>(takes, 7)); });
      collectives.wait();
    });
    for (const std::exception_ptr& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, sends ? "splits" : "result");
      EXPECT_EQ(error.rank, 2u);
    }
  }
}

TEST(BetweenHosts, AnotherMessageIsRefusedByItsReceiver) {
  const Outcomes outcomes = run({0, 1}, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
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
  EXPECT_EQ(error.rank, 0u);
}

TEST(BetweenHosts, SeveralMessagesWithOneRankArriveInOrder) {
  constexpr uint64_t kSizes[] = {1, 300, 5, 90};
  constexpr uint64_t kAll = 396;
  expect_none_failed(run({0, 0, 1}, [&](World& world) {
    DeviceCollectives collectives(world, {.chunk_bytes = 64, .ring_bytes = 128});
    const auto mine = static_cast<int32_t>(world.rank());
    const DeviceArray<int32_t> sent(accelerator_of(world), std::vector<int32_t>(kAll, mine));
    const DeviceArray<int32_t> came(accelerator_of(world), std::vector<int32_t>(2 * kAll, 9));
    std::vector<device_collectives::Send> sends;
    std::vector<device_collectives::Receive> receives;
    std::vector<int32_t> expected;
    uint64_t at = 0;
    for (uint32_t tag = 0; tag < 4; at += kSizes[tag++])
      for (uint32_t turn = 1; turn < 3; ++turn) {  // Messages with different ranks alternate.
        const uint32_t peer = (world.rank() + turn) % 3;
        const auto part = [&](const DeviceArray<int32_t>& array, uint64_t first) {
          return TensorView{array.data() + first, DataType::int32, {kSizes[tag]}};
        };
        sends.push_back({part(sent, at), peer, tag});
        receives.push_back({part(came, (turn - 1) * kAll + at), peer, tag});
      }
    for (uint32_t turn = 1; turn < 3; ++turn)
      expected.insert(expected.end(), kAll, static_cast<int32_t>((world.rank() + turn) % 3));
    collectives.exchange(sends, receives);
    collectives.wait();
    EXPECT_EQ(came.read(), expected);
    collectives.close();
  }));
}

TEST(BetweenHosts, AMessageThatNobodySendsNamesItsSender) {
  std::atomic<bool> ended = false;
  const Outcomes outcomes = run({0, 0, 1}, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    const DeviceArray<float> tensor(accelerator_of(world), 12);
    const std::shared_ptr<void> at_end(nullptr, [&](auto) { ended = world.rank() == 0 || ended; });
    if (world.rank() == 0)
      collectives.exchange({}, {{tensor.view({12}), 2}}, {.timeout = std::chrono::seconds(1)});
    collectives.wait();
    while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  EXPECT_EQ(error_of<PeerTimeout>(outcomes[0]).facts.rank, 2u);
}

// With one queue per peer, collectives have it, and messages none; those inside a host need none.
TEST(BetweenHosts, MessagesWithoutAQueueAreRefused) {
  expect_none_failed(run({0, 0, 1},
                         [&](World& world) {
                           DeviceCollectives collectives(world, kSmall);
                           const DeviceArray<float> tensor(accelerator_of(world), 4);
                           const uint32_t far = world.rank() == 2 ? 0 : 2;
                           try {
                             collectives.exchange({{tensor.view({4}), far}}, {});
                             ADD_FAILURE() << "a message without a queue";
                           } catch (const Unsupported& error) {
                             EXPECT_THAT(error.what(),
                                         testing::HasSubstr("TOKENYARD_NETWORK_QUEUES"));
                           }
                           if (world.rank() == 0) collectives.exchange({{tensor.view({4}), 1}}, {});
                           if (world.rank() == 1) collectives.exchange({}, {{tensor.view({4}), 0}});
                           collectives.barrier();
                           collectives.wait();
                           collectives.close();
                         },
                         {.queues_per_peer = 1}));
}

struct Empty {
  Hosts host_of;
  std::vector<uint32_t> absent;
};

// Slots are empty inside hosts, a host is left without ranks, or all ranks that are left are on
// one.
TEST(BetweenHosts, EmptySlotsHaveZerosInPlaceOfParts) {
  for (const auto& [host_of, absent] :
       {Empty{{0, 0, 1, 1, 2}, {1}}, Empty{{0, 0, 1, 1, 2}, {4}}, Empty{{0, 1, 1, 1, 2}, {0, 2}},
        Empty{{0, 0, 1, 1, 2}, {2, 3, 4}}}) {
    const auto ranks = static_cast<uint32_t>(host_of.size());
    expect_none_failed(run(
        host_of,
        [&, &host_of = host_of, &absent = absent](World& world) {
          DeviceCollectives collectives(world, kSmall);
          uint64_t seed = 0;
          for (const Operation operation : kOperations)
            for (const uint64_t elements : {0u, 1u, 7u, 301u}) {
              const CallCase of{.operation = operation,
                                .type = ++seed % 2 == 0 ? DataType::bfloat16 : DataType::float32,
                                .op = seed % 3 == 0 ? ReduceOp::average : ReduceOp::sum,
                                .elements = elements,
                                .root = 3 % ranks == absent.front() || absent.size() == 3 ? 0u : 3u,
                                .in_place = seed % 4 == 0,
                                .seed = seed,
                                .host_of = host_of,
                                .absent = absent};
              EXPECT_EQ(difference_after(world, collectives, of), "") << "rank " << world.rank();
            }
          for (const uint32_t bytes_max : {1u, 700u})
            for (const uint32_t kind : {0u, 1u, 2u}) {
              MessageRound round = round_of(ranks, bytes_max, kind != 2, bytes_max + kind);
              round.on_device = kind == 1;
              round.absent = absent;
              StartedRound started(world, round);
              started.start(collectives, {});
              collectives.wait();
              EXPECT_EQ(started.difference(), "") << kind << ", rank " << world.rank();
            }
          const DeviceArray<float> tensor(accelerator_of(world), 4);
          EXPECT_THROW(collectives.exchange({{tensor.view({4}), absent[0]}}, {}), OperationAborted);
          collectives.close();
        },
        {.absent = absent}));
  }
}

// Memory and queues come back: more objects than there are queues, one after the other.
TEST(BetweenHosts, ClosedObjectsGiveTheirQueuesBack) {
  expect_none_failed(run({0, 1, 1}, [&](World& world) {
    for (uint32_t round = 0; round < 6; ++round) {
      DeviceCollectives one(world, kSmall), other(world, kSmall);
      for (DeviceCollectives* collectives : {&one, &other})
        EXPECT_EQ(difference_after(
                      world, *collectives,
                      {.operation = Operation::all_reduce, .elements = 900, .host_of = {0, 1, 1}}),
                  "");
      one.close();
      other.close();
    }
  }));
}

}  // namespace
}  // namespace tokenyard::test
