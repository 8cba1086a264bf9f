/// Where a combine between hosts rounds: each other host's sum once, before it travels, and the
/// whole once; with fp32 partials the whole alone.
#include <cmath>
#include <random>

#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/reference.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kRanks = 6, kHosts = 3, kHidden = 64;

using Rows = std::vector<std::vector<float>>;  // [ranks][hidden]

/// Rank 0 sends one token to all ranks. Returns what comes home if rank r's result is values[i][r],
/// for each i.
Rows homes(bool fp32_partials, const std::vector<Rows>& values) {
  Rows sums;
  expect_none_failed(run_ranks(
      World::in_process(
          kRanks, "host",
          {.timeout = std::chrono::seconds(60), .arena_bytes = size_t{16} << 20, .hosts = kHosts}),
      [&](World& world) {
        Accelerator& accelerator = accelerator_of(world);
        ExpertParallel exchange(world, {.experts = kRanks,
                                        .hidden = kHidden,
                                        .topk = kRanks,
                                        .tokens_max = 1,
                                        .fp32_partials = fp32_partials});
        const uint32_t tokens = world.rank() == 0 ? 1 : 0;
        const DeviceArray<uint16_t> x(accelerator, size_t{tokens} * kHidden);
        std::vector<int32_t> all;
        for (uint32_t expert = 0; expert < tokens * kRanks; ++expert)
          all.push_back(static_cast<int32_t>(expert));
        const DeviceArray<int32_t> ids(accelerator, all);
        const Received received =
            exchange.dispatch({.x = {x.data(), DataType::bfloat16, {tokens, kHidden}},
                               .topk_idx = {ids.data(), DataType::int32, {tokens, kRanks}}});
        ASSERT_EQ(received.rows, 1u);
        for (const Rows& of_ranks : values) {
          std::vector<uint16_t> mine;
          for (const float value : of_ranks[world.rank()]) mine.push_back(to_bf16(value));
          const DeviceArray<uint16_t> y(accelerator, mine);
          const DeviceArray<uint16_t> out(accelerator, size_t{tokens} * kHidden);
          exchange.combine({.y = y.bf16_rows(kHidden)}, *received.route,
                           {.x = out.bf16_rows(kHidden)});
          exchange.wait();
          if (tokens == 0) continue;
          sums.emplace_back();
          for (const uint16_t value : out.read()) sums.back().push_back(from_bf16(value));
        }
        world.barrier("done");
      }));
  return sums;
}

/// Above 256, bfloat16 holds even numbers alone, and a tie goes to the one with an even last bit.
TEST(RoundingBetweenHosts, ExactValues) {
  struct Case {
    std::vector<float> values;  // Of ranks 0 to 5; hosts have two each.
    float rounded, wide;
  };
  const Case cases[] = {
      // 256 + 1 of the second host is a tie, which goes to 256.
      {{1, 0, 256, 1, 0, 0}, 256, 258},
      // 258 + 1 goes to 260.
      {{1, 0, 258, 1, 0, 0}, 260, 260},
      {{-1, 0, 258, 1, 0, 0}, 260, 258},
      // Two hosts, each rounded; the own host's results are never rounded before the end.
      {{0, 0, 256, 1, 256, 1}, 512, 512},
      {{2, 0, 256, 1, 256, 1}, 512, 516},
      {{256, 1, 1, 0, 0, 0}, 258, 258},
      // A sum that was rounded away there would have counted here.
      {{-256, 0, 256, 1, 0, 0}, 0, 1},
  };
  std::vector<Rows> values;
  for (const Case& one : cases) {
    values.emplace_back();
    for (const float value : one.values) values.back().emplace_back(kHidden, value);
  }
  const Rows rounded = homes(false, values), wide = homes(true, values);
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(testing::PrintToString(cases[i].values));
    EXPECT_EQ(rounded.at(i), std::vector<float>(kHidden, cases[i].rounded));
    EXPECT_EQ(wide.at(i), std::vector<float>(kHidden, cases[i].wide));
  }
}

/// The error is at most half a unit in the last place of the result and of each other host's sum,
/// beside that of fp32.
TEST(RoundingBetweenHosts, ErrorsAreWithinTheirBound) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto half_ulp = [](double value) {
    return value == 0 ? 0 : std::ldexp(1.0, std::ilogb(value) - 8);
  };
  uint32_t beyond_one_rounding = 0;
  std::vector<Rows> drawn(20, Rows(kRanks, std::vector<float>(kHidden)));
  for (Rows& rows : drawn)
    for (auto& row : rows)
      for (float& value : row)
        value = from_bf16(to_bf16(normal(random) * std::exp(2 * normal(random))));
  const Rows all_rounded = homes(false, drawn), all_wide = homes(true, drawn);
  for (size_t round = 0; round < drawn.size(); ++round) {
    const Rows& values = drawn[round];
    const std::vector<float>&rounded = all_rounded.at(round), &wide = all_wide.at(round);
    for (uint32_t column = 0; column < kHidden; ++column) {
      double sum = 0, magnitude = 0, of_partials = 0;
      for (uint32_t host = 0; host < kHosts; ++host) {
        const double partial = double{values[2 * host][column]} + values[2 * host + 1][column];
        sum += partial;
        magnitude += std::abs(values[2 * host][column]) + std::abs(values[2 * host + 1][column]);
        if (host != 0) of_partials += half_ulp(partial);
      }
      const double of_fp32 = 8 * std::ldexp(magnitude, -24);
      const auto bound = [&](double before) {
        return before + half_ulp(std::abs(sum) + before) * (1 + 1e-9);
      };
      EXPECT_LE(std::abs(rounded[column] - sum), bound(of_partials + of_fp32));
      EXPECT_LE(std::abs(wide[column] - sum), bound(of_fp32));
      beyond_one_rounding += std::abs(rounded[column] - sum) > bound(of_fp32) ? 1 : 0;
    }
  }
  EXPECT_GT(beyond_one_rounding, 0u) << "no sum of another host was rounded";
}

}  // namespace
}  // namespace tokenyard::test
