// Collectives on device tensors among ranks of several hosts, over simulated network cards: every
// operation over types, sizes, places and shapes of hosts, compared bit for bit with the arithmetic
// of the collectives on CPU tensors.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/device/call_case.hpp"
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

Outcomes run(const Hosts& host_of, const Body& body,
             std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (size_t rank = 0; rank < host_of.size(); ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  return run_ranks(
      join_all(accelerators, std::make_shared<InProcessFabric>(host_of),
               {.timeout = timeout, .arena_bytes = size_t{64} << 20}, {.run = cards_on_threads()}),
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
    const Outcomes outcomes = run(
        {0, 0, 1, 1},
        [&](World& world) {
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
        },
        std::chrono::seconds(60));
    for (uint32_t rank = 0; rank < 4; ++rank)
      if (rank != silent) {
        EXPECT_EQ(error_of<PeerTimeout>(outcomes[rank]).facts.rank, silent) << rank;
      }
  }
}

TEST(BetweenHosts, WhatDoesNotExistThereIsRefused) {
  expect_none_failed(run({0, 1}, [&](World& world) {
    DeviceCollectives collectives(world, kSmall);
    const DeviceArray<float> tensor(accelerator_of(world), 4);
    const TensorView view = tensor.view({4});
    EXPECT_THROW(collectives.exchange({{view, 1 - world.rank()}}, {}), Unsupported);
    EXPECT_THROW(collectives.all_to_all(view, view, {{2, 2}, {2, 2}}), Unsupported);
    EXPECT_THROW(collectives.barrier({.protocol = Protocol::slots}), InvalidArgument);
    collectives.barrier();
    collectives.close();
  }));
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
