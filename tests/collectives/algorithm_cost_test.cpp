// The cost of operations in bytes, counted by the channels, and their rounding and bits.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <random>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

void run_all(EngineWorld& world, uint32_t ranks, const std::function<Call(uint32_t)>& make) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (uint32_t rank = 0; rank < ranks; ++rank) operations.push_back(world.start(rank, make(rank)));
  world.run(operations);
  for (const auto& operation : operations) ASSERT_EQ(error_text(*operation), "");
}

struct Cost {
  Algorithm algorithm;
  uint32_t ranks;
  size_t bytes;
};

class Costs : public ::testing::TestWithParam<Cost> {};

// Including headers: within 5 % of 2 B (N-1)/N from 64 KiB up.
TEST_P(Costs, AllReduceSendsWhatItMust) {
  const auto [algorithm, ranks, bytes] = GetParam();
  EngineWorld world({.ranks = ranks, .ring_bytes = 512 << 10, .chunk_bytes = 128 << 10});
  std::vector<std::vector<float>> values(ranks, std::vector<float>(bytes / 4, 1));
  run_all(world, ranks, [&](uint32_t rank) {
    return all_reduce_call(array_of(values[rank]), ReduceOp::sum, algorithm);
  });
  const double bound = 2.0 * static_cast<double>(bytes) * (ranks - 1) / ranks;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    EXPECT_LE(static_cast<double>(world.engine(rank).counters().bytes_sent), 1.05 * bound) << rank;
  }
}

std::vector<Cost> costs() {
  std::vector<Cost> costs;
  for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, (size_t{3} << 20) + 4}) {
    for (uint32_t ranks = 2; ranks <= 6; ++ranks) {
      costs.push_back({Algorithm::automatic, ranks, bytes});
      costs.push_back({Algorithm::direct, ranks, bytes});
      costs.push_back({Algorithm::ring, ranks, bytes});
    }
    costs.push_back({Algorithm::halving_doubling, 2, bytes});
    costs.push_back({Algorithm::halving_doubling, 4, bytes});
  }
  return costs;
}

INSTANTIATE_TEST_SUITE_P(All, Costs, ::testing::ValuesIn(costs()), [](const auto& info) {
  return fmt::format("{}_{}ranks_{}bytes", name_of(info.param.algorithm), info.param.ranks,
                     info.param.bytes);
});

TEST(Cost, OtherOperationsSendEachByteOnce) {
  constexpr uint32_t ranks = 4;
  constexpr size_t part = 64 << 10;
  std::vector<std::vector<float>> in(ranks, std::vector<float>(ranks * part / 4, 1)), out = in;
  const auto parts = [&](std::vector<float>& values) {
    std::vector<Array> arrays;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      arrays.push_back({values.data() + rank * part / 4, part / 4, DataType::float32});
    }
    return arrays;
  };
  for (const OperationKind kind :
       {OperationKind::all_gather, OperationKind::reduce_scatter, OperationKind::all_to_all}) {
    EngineWorld world({.ranks = ranks, .ring_bytes = 512 << 10, .chunk_bytes = 128 << 10});
    run_all(world, ranks, [&](uint32_t rank) {
      Call call = {.signature = {.kind = kind, .type = DataType::float32}, .bytes = ranks * part};
      const std::vector<Array> all_in = parts(in[rank]), all_out = parts(out[rank]);
      const bool one_in = kind == OperationKind::all_gather;
      const bool one_out = kind == OperationKind::reduce_scatter;
      call.in.assign(all_in.begin(), one_in ? all_in.begin() + 1 : all_in.end());
      call.out.assign(all_out.begin(), one_out ? all_out.begin() + 1 : all_out.end());
      return call;
    });
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_LE(static_cast<double>(world.engine(rank).counters().bytes_sent),
                1.05 * part * (ranks - 1))
          << name_of(kind);
    }
  }
}

// Sums of these numbers depend on the order: all ranks get the same bits, and again in each run.
TEST(Bits, AreTheSameOnAllRanks) {
  for (const Algorithm algorithm : {Algorithm::doubling, Algorithm::halving_doubling,
                                    Algorithm::ring, Algorithm::direct, Algorithm::tree}) {
    for (uint32_t ranks = 2; ranks <= 6; ++ranks) {
      std::vector<float> first;
      for (const size_t ring_bytes : {size_t{1003}, size_t{50000}}) {
        EngineWorld world({.ranks = ranks, .ring_bytes = ring_bytes, .chunk_bytes = 1024});
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<std::vector<float>> values(ranks, std::vector<float>(3001));
        for (auto& mine : values) {
          for (float& value : mine) value = std::exp(5 * normal(random));
        }
        run_all(world, ranks, [&](uint32_t rank) {
          return all_reduce_call(array_of(values[rank]), ReduceOp::average, algorithm);
        });
        if (first.empty()) first = values[0];
        for (const auto& mine : values) ASSERT_EQ(mine, first) << name_of(algorithm) << ranks;
      }
    }
  }
}

// 1 + 2^-11 added three times to 1: rounding in between would lose each of them.
TEST(Bits, ShortFloatsAreRoundedOnce) {
  for (const Algorithm algorithm : {Algorithm::doubling, Algorithm::ring, Algorithm::direct,
                                    Algorithm::halving_doubling, Algorithm::tree}) {
    for (const size_t elements : {size_t{3}, size_t{2000}}) {
      constexpr uint32_t ranks = 4;
      EngineWorld world({.ranks = ranks, .chunk_bytes = 1024});
      std::vector<std::vector<uint16_t>> values(ranks, std::vector<uint16_t>(elements));
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const float value = rank == 0 ? 1 : 0x1p-11f;
        for (uint16_t& element : values[rank]) narrow(&element, &value, DataType::float16, 1);
      }
      run_all(world, ranks, [&](uint32_t rank) {
        return all_reduce_call({values[rank].data(), elements, DataType::float16}, ReduceOp::sum,
                               algorithm);
      });
      const float exact = 1 + 3 * 0x1p-11f;
      uint16_t expected;
      narrow(&expected, &exact, DataType::float16, 1);
      for (const auto& mine : values) {
        ASSERT_EQ(mine, std::vector<uint16_t>(elements, expected)) << name_of(algorithm);
      }
    }
  }
}

TEST(Bits, SeveralArraysGoAsOneOperation) {
  for (const size_t elements : {size_t{5}, size_t{20000}}) {
    EngineWorld world({.ranks = 3});
    std::vector<std::vector<float>> floats(3, std::vector<float>(elements, 1)), more = floats;
    std::vector<std::vector<int64_t>> integers(3, std::vector<int64_t>(elements, 2));
    run_all(world, 3, [&](uint32_t rank) {
      Call call = all_reduce_call(array_of(floats[rank]));
      call.out.push_back(array_of(more[rank]));
      call.out.push_back({integers[rank].data(), elements, DataType::int64});
      call.bytes = elements * 16;
      return call;
    });
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(floats[rank], std::vector<float>(elements, 3));
      EXPECT_EQ(more[rank], std::vector<float>(elements, 3));
      EXPECT_EQ(integers[rank], std::vector<int64_t>(elements, 6));
    }
  }
}

}  // namespace
}  // namespace tokenyard::collectives::testing
