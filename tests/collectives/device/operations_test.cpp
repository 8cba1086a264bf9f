// Collectives on device tensors: every operation over types, sizes, places and numbers of ranks,
// compared bit for bit with the arithmetic of the collectives on CPU tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "collectives/device/call_case.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

constexpr Operation kOperations[] = {
    Operation::barrier,   Operation::all_reduce,     Operation::reduce,
    Operation::broadcast, Operation::all_gather,     Operation::gather,
    Operation::scatter,   Operation::reduce_scatter, Operation::all_to_all};
constexpr DataType kTypes[] = {DataType::boolean, DataType::uint8,         DataType::int8,
                               DataType::uint16,  DataType::int16,         DataType::uint32,
                               DataType::int32,   DataType::uint64,        DataType::int64,
                               DataType::float16, DataType::bfloat16,      DataType::float32,
                               DataType::float64, DataType::float8_e4m3fn, DataType::float8_e5m2};

bool is_float(DataType type) {
  return type == DataType::float8_e4m3fn || type == DataType::float8_e5m2 ||
         type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32 ||
         type == DataType::float64;
}

class DeviceCollectivesTest : public OnDevice {};

TEST_P(DeviceCollectivesTest, EveryOperationBringsTheReferencesBytes) {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 6u}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(world, {.packet_bytes = 64 << 10});
      uint64_t seed = 0;
      for (const Operation operation : kOperations)
        for (const uint64_t elements : {0u, 1u, 7u, 64u, 301u})
          for (const uint32_t offset : {0u, 1u, 3u})
            for (const bool in_place : {false, true}) {
              ++seed;
              const CallCase of{.operation = operation,
                                .type = seed % 2 == 0 ? DataType::bfloat16 : DataType::float32,
                                .elements = elements,
                                .root = static_cast<uint32_t>(seed) % ranks,
                                .in_place = in_place,
                                .offset = offset,
                                .seed = seed};
              EXPECT_EQ(difference_after(world, collectives, of), "")
                  << ranks << " ranks, rank " << world.rank();
            }
      collectives.close();
    }));
  }
}

TEST_P(DeviceCollectivesTest, EveryTypeIsReducedByEveryOperator) {
  const auto all = worlds(3);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    for (const DataType type : kTypes)
      for (const ReduceOp op :
           {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max,
            ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
        const CallCase of{.operation = Operation::all_reduce,
                          .type = type,
                          .op = op,
                          .elements = 29,
                          .seed = static_cast<uint64_t>(type) * 8 + static_cast<uint64_t>(op)};
        const bool bitwise = op >= ReduceOp::bit_and;
        if (is_float(type) ? bitwise : op == ReduceOp::average) {
          StartedCall call(world, of);
          EXPECT_THROW(call.start(collectives), InvalidArgument) << of.text();
        } else {
          EXPECT_EQ(difference_after(world, collectives, of), "");
        }
      }
    collectives.close();
  }));
}

// A NaN of any rank reaches the result, whatever the operator.
TEST_P(DeviceCollectivesTest, NansArePassedThrough) {
  const auto all = worlds(3);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      std::vector<float> numbers(world.size(), 1.0f);
      numbers[world.rank()] = std::numeric_limits<float>::quiet_NaN();
      const DeviceArray<float> tensor(accelerator_of(world), numbers);
      collectives.all_reduce(tensor.view({numbers.size()}), tensor.view({numbers.size()}), op);
      collectives.wait();
      EXPECT_THAT(tensor.read(), testing::Each(testing::IsNan())) << name_of(op);
    }
    collectives.close();
  }));
}

// Results are the same bits for any number of blocks, which ranks choose alone.
TEST_P(DeviceCollectivesTest, BlocksChangeNoBits) {
  const auto all = worlds(2);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    for (uint32_t sms = 1; sms <= 5; ++sms) {
      CallCase of{.operation = Operation::all_reduce, .elements = 777, .seed = 5};
      // Ranks that share a GPU launch one grid.
      const bool alike = accelerator_of(world).capacity().one_grid;
      of.call.sms = alike ? sms : 1 + (sms + world.rank()) % 5;
      EXPECT_EQ(difference_after(world, collectives, of), "");
    }
    collectives.close();
  }));
}

// Messages that need several rounds of slots, or several laps of rings. The last parts of an
// all_reduce of three and more ranks are short or empty.
TEST_P(DeviceCollectivesTest, LargeMessagesAreMovedByEachProtocol) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(
          world, {.slot_bytes = 256, .packet_bytes = 1024, .chunk_bytes = 64, .ring_bytes = 192});
      for (const Protocol protocol :
           {Protocol::slots, Protocol::packets, Protocol::rings, Protocol::automatic})
        for (const Operation operation : kOperations)
          for (const uint64_t elements : {9u, 701u})
            for (const bool in_place : {false, true}) {
              CallCase of{.operation = operation,
                          .type = DataType::bfloat16,
                          .elements = elements,
                          .root = ranks - 1,
                          .in_place = in_place,
                          .offset = in_place ? 1u : 8u,
                          .seed = elements};
              of.call.protocol = protocol;
              EXPECT_EQ(difference_after(world, collectives, of), "")
                  << ranks << " ranks, rank " << world.rank();
            }
      collectives.close();
    }));
  }
}

// Tensors of the arena: every operation moves bytes from tensor to tensor, of any alignment.
TEST_P(DeviceCollectivesTest, TensorsOfTheArenaAreMovedDirectly) {
  for (const uint32_t ranks : {1u, 2u, 3u, 6u}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(
          world, {.slot_bytes = 256, .packet_bytes = 1024, .chunk_bytes = 64, .ring_bytes = 192});
      uint64_t seed = 0;
      for (const Operation operation : kOperations)
        for (const uint64_t elements : {0u, 1u, 33u, 700u})
          for (const bool in_place : {false, true}) {
            ++seed;
            if (operation == Operation::all_to_all && in_place) continue;
            CallCase of{.operation = operation,
                        .type = kTypes[seed % std::size(kTypes)],
                        .elements = elements,
                        .root = ranks / 2,
                        .in_place = in_place,
                        .in_arena = true,
                        .offset = static_cast<uint32_t>(seed % 3),
                        .seed = seed};
            of.call.protocol = Protocol::direct;
            EXPECT_EQ(difference_after(world, collectives, of), "")
                << ranks << " ranks, rank " << world.rank();
          }
      collectives.close();
    }));
  }
}

// Spans of whole steps of several pieces per lane, then of fewer, then the last bytes
// (spans_kernel.hpp): every type, of two sources, of some, and of more than are loaded at once.
TEST_P(DeviceCollectivesTest, StepsOfSpansBringTheReferencesBytes) {
  for (const uint32_t ranks : {2u, 3u, 6u}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(world, {.slot_bytes = 64, .packet_bytes = 16 << 10});
      uint64_t seed = 0;
      for (const DataType type : kTypes)
        for (const Protocol protocol : {Protocol::packets, Protocol::rings, Protocol::direct})
          for (const Operation operation :
               {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather}) {
            ++seed;
            const uint64_t bytes = ranks * 16 * 512 + 2 * 512 + 512 + 48;
            CallCase of{.operation = operation,
                        .type = type,
                        .op = seed % 4 == 0                     ? ReduceOp::max
                              : is_float(type) && seed % 4 == 1 ? ReduceOp::average
                                                                : ReduceOp::sum,
                        .elements = bytes / bytes_of(type) / (seed % 2 == 0 ? 1 : ranks) + 1,
                        .in_place = seed % 3 == 0,
                        .in_arena = protocol == Protocol::direct,
                        .seed = seed};
            of.call.protocol = protocol;
            EXPECT_EQ(difference_after(world, collectives, of), "")
                << ranks << " ranks, rank " << world.rank();
          }
      collectives.close();
    }));
  }
}

// With tensors in all arenas, `arena_tensors` sends what packets do not hold from tensor to tensor;
// if one rank's lie elsewhere, all ranks name it.
TEST_P(DeviceCollectivesTest, ARankWithoutTensorsOfTheArenaIsNamed) {
  if (GetParam() != "host") GTEST_SKIP() << "ranks of one grid launch one kernel";
  const auto all = worlds(2);
  const Outcomes outcomes = run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(
        world,
        {.slot_bytes = 64, .packet_bytes = 64, .ring_bytes = 64 << 10, .arena_tensors = true});
    CallCase of{.operation = Operation::all_gather, .elements = 40, .in_arena = true};
    EXPECT_EQ(difference_after(world, collectives, of), "");
    of.in_arena = false;
    EXPECT_EQ(difference_after(world, collectives, of), "") << "by rings, which all choose";
    CallCase direct = of;
    direct.call.protocol = Protocol::direct;
    StartedCall refused(world, direct);
    EXPECT_THROW(refused.start(collectives), InvalidArgument);
    of.in_arena = world.rank() == 0;
    StartedCall call(world, of);
    call.start(collectives);
    collectives.wait();
  });
  for (const std::exception_ptr& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.expected, "all_gather of float32, in the arena as on rank 0");
    EXPECT_EQ(error.seen, "all_gather of float32, by rings");
    EXPECT_EQ(error.rank, 1u);
  }
}

// PREMUL_SUM: every summand is multiplied by a factor that all ranks give alike.
TEST_P(DeviceCollectivesTest, SumsOfFloatsMayHaveAFactor) {
  for (const bool alike : {true, false}) {
    const auto all = worlds(3);
    const Outcomes outcomes = run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(
          world, {.slot_bytes = 64, .packet_bytes = 128, .ring_bytes = 64 << 10});
      for (const DataType type : kTypes) {
        CallCase of{.operation = Operation::reduce_scatter,
                    .type = type,
                    .elements = 41,
                    .factor = 1.0 / 3,
                    .seed = 7};
        if (!is_float(type)) {
          StartedCall call(world, of);
          EXPECT_THROW(call.start(collectives), InvalidArgument) << of.text();
          continue;
        }
        for (const Protocol protocol :
             {Protocol::slots, Protocol::packets, Protocol::rings, Protocol::direct}) {
          of.in_arena = protocol == Protocol::direct;
          of.call.protocol = protocol;
          EXPECT_EQ(difference_after(world, collectives, of), "");
        }
      }
      CallCase of{.operation = Operation::all_reduce, .elements = 5, .factor = 0.5};
      if (!alike && world.rank() == 2) of.factor = 0.25;
      StartedCall call(world, of);
      call.start(collectives);
      collectives.wait();
      EXPECT_EQ(call.difference(), "");
      collectives.close();
    });
    if (alike) {
      expect_none_failed(outcomes);
      continue;
    }
    for (const std::exception_ptr& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, "factor");
      EXPECT_EQ(error.rank, 2u);
    }
  }
}

// Written by hand, beside the reference: 16 + 1 + 1 is 18, but 16 if each sum is rounded.
TEST_P(DeviceCollectivesTest, SumsOfFp8AreRoundedOnce) {
  constexpr uint8_t kOne = 0x38, kSixteen = 0x58;
  struct Sum {
    device_collectives::Reduction by;
    uint8_t expected;
  };
  const Sum sums[] = {{ReduceOp::sum, 0x59},         // 18
                      {{ReduceOp::sum, 0.5}, 0x51},  // 9
                      {ReduceOp::average, 0x4c},     // 6
                      {ReduceOp::product, kSixteen},
                      {ReduceOp::min, kOne}};
  const auto all = worlds(3);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    for (const Sum& sum : sums) {
      const DeviceArray<uint8_t> tensor(accelerator_of(world),
                                        std::vector<uint8_t>{world.rank() == 1 ? kSixteen : kOne});
      const TensorView view = tensor.view(DataType::float8_e4m3fn, {1});
      collectives.all_reduce(view, view, sum.by);
      collectives.wait();
      EXPECT_EQ(tensor.read()[0], sum.expected) << name_of(sum.by.op);
    }
    collectives.close();
  }));
}

// Every rank raises the same error, which names the rank that differs and both calls.
TEST_P(DeviceCollectivesTest, DifferentCallsAreNamedOnAllRanks) {
  const CallCase usual{.operation = Operation::all_reduce, .elements = 40, .root = 0};
  struct Different {
    CallCase call;
    const char *argument, *expected, *seen;
  };
  CallCase other_size = usual, other_type = usual, other_op = usual, other_operation = usual;
  other_size.elements = 41;
  other_type.type = DataType::int32;
  other_op.op = ReduceOp::max;
  other_operation.operation = Operation::all_gather;
  const Different cases[] = {
      {other_size, "size", "160 bytes as on rank 0", "164 bytes"},
      {other_type, "call", "all_reduce(sum) of float32 as on rank 0", "all_reduce(sum) of int32"},
      {other_op, "call", "all_reduce(sum) of float32 as on rank 0", "all_reduce(max) of float32"},
      {other_operation, "call", "all_reduce(sum) of float32 as on rank 0",
       "all_gather of float32"}};
  for (const Different& different : cases) {
    const auto all = worlds(3);
    const Outcomes outcomes = run_ranks(all, [&](World& world) {
      DeviceCollectives collectives(world);
      EXPECT_EQ(difference_after(world, collectives, usual), "");
      StartedCall call(world, world.rank() == 2 ? different.call : usual);
      call.start(collectives);
      collectives.wait();
    });
    for (const std::exception_ptr& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, different.argument);
      EXPECT_EQ(error.expected, different.expected);
      EXPECT_EQ(error.seen, different.seen);
      EXPECT_EQ(error.rank, 2u);
    }
  }
}

TEST_P(DeviceCollectivesTest, AnEmptySlotHasNoData) {
  const auto all = worlds(3, {1});
  const Outcomes outcomes = run_ranks(all, [](World& world) {
    DeviceCollectives collectives(world, {});
    Accelerator& accelerator = accelerator_of(world);
    const float mine = static_cast<float>(world.rank()) + 1;
    const DeviceArray<float> input(accelerator, std::vector<float>{mine, mine});
    DeviceArray<float> sum(accelerator, 2), parts(accelerator, 6), uneven(accelerator, 6);
    sum.poison();
    parts.poison();
    uneven.poison();
    collectives.all_reduce(input.view({2}), sum.view({2}), ReduceOp::sum);
    collectives.all_gather(input.view({2}), parts.view({6}));
    const std::vector<uint64_t> counts = {2, 3, 1};
    collectives.all_gather(TensorView(input.data(), {counts[world.rank()]}), uneven.view({6}),
                           counts);
    collectives.wait();
    EXPECT_THAT(sum.read(), ::testing::ElementsAre(4, 4));
    EXPECT_THAT(parts.read(), ::testing::ElementsAre(1, 1, 0, 0, 3, 3));
    EXPECT_THAT(uneven.read(), ::testing::ElementsAre(1, 1, 0, 0, 0, 3));
    collectives.close();
  });
  for (const uint32_t rank : {0u, 2u}) EXPECT_EQ(outcomes[rank], nullptr);
}

// A silent rank ends the others' waits at the deadline, and the object has failed for good.
TEST_P(DeviceCollectivesTest, SilentRanksAreNamedAtTheDeadline) {
  if (GetParam() != "host") GTEST_SKIP() << "ranks of one grid are launched together";
  const auto all = worlds(3);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    CallCase of{.operation = Operation::all_reduce, .elements = 9};
    of.call.timeout = std::chrono::milliseconds(200);
    if (world.rank() != 1) {
      for (int again = 0; again < 2; ++again) try {
          StartedCall call(world, of);
          call.start(collectives);
          collectives.wait();
          ADD_FAILURE() << "a call without rank 1 ended well";
        } catch (const PeerTimeout& error) {
          EXPECT_EQ(error.facts.rank, 1u);
          EXPECT_THAT(error.facts.phase, testing::StartsWith("device collective: "));
        }
    }
    world.barrier("all have given up");
  }));
}

TEST_P(DeviceCollectivesTest, WrongArgumentsAreNamedBeforeAnythingIsSent) {
  const auto all = worlds(2);
  expect_none_failed(run_ranks(all, [&](World& world) {
    DeviceCollectives collectives(world);
    const DeviceArray<float> tensor(accelerator_of(world), 12);
    const DeviceArray<int32_t> numbers(accelerator_of(world), 12);
    const auto argument_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const InvalidArgument& error) {
        return error.argument;
      }
      return "none";
    };
    EXPECT_EQ(argument_of([&] {
                collectives.all_reduce(tensor.view({12}), tensor.view({11}), ReduceOp::sum);
              }),
              "result");
    EXPECT_EQ(argument_of([&] {
                collectives.all_reduce(tensor.view({12}), numbers.view({12}), ReduceOp::sum);
              }),
              "result");
    EXPECT_EQ(argument_of([&] {
                collectives.reduce_scatter(tensor.view({12}), tensor.view({5}), ReduceOp::sum);
              }),
              "input");
    EXPECT_EQ(argument_of([&] { collectives.all_to_all(tensor.view({11}), tensor.view({11})); }),
              "input");
    EXPECT_EQ(argument_of([&] { collectives.broadcast(tensor.view({12}), 2); }), "root");
    EXPECT_EQ(argument_of([&] { collectives.all_gather({}, tensor.view({12})); }), "input");
    EXPECT_EQ(argument_of([&] {
                collectives.all_reduce(tensor.view({12}), tensor.view({6, 2}).with_strides({1, 6}),
                                       ReduceOp::sum);
              }),
              "result");
    EXPECT_EQ(difference_after(world, collectives, {.elements = 3}), "");
    collectives.close();
    EXPECT_EQ(argument_of([&] { collectives.barrier(); }), "collectives");
  }));
}

INSTANTIATE_ON_DEVICES(DeviceCollectivesTest);

}  // namespace
}  // namespace tokenyard::test
