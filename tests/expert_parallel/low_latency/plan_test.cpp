/// The number of blocks and warps of a low-latency call on a GPU, and of its sending blocks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "expert_parallel/low_latency/host/plan.hpp"

namespace tokenyard::low_latency {
namespace {

constexpr Capacity kH200{.multiprocessors = 132, .shared_bytes = 227 << 10};
constexpr Capacity kHost{.multiprocessors = 32, .shared_bytes = 227 << 10};
constexpr uint32_t kAll = 132, kRanks = 4;

Plan plan_of(uint32_t tokens_max, uint32_t ranks = kRanks, uint32_t hidden = 7168) {
  return make_plan({.experts = 288, .hidden = hidden, .topk = 8, .tokens_max = tokens_max}, ranks,
                   AcceleratorKind::gpu, kH200);
}

void expect_split(const Split& split, uint32_t blocks, uint32_t send_blocks) {
  EXPECT_EQ(split.blocks, blocks);
  EXPECT_EQ(split.send_blocks, send_blocks);
}

TEST(LowLatencyPlan, ManyTokensTakeAllBlocks) {
  const Plan plan = plan_of(128);
  expect_split(plan.dispatch(Part::both, kAll, 128), 132, 16 + 1);  // One publishes ids.
  expect_split(plan.dispatch(Part::receive, kAll, 128), 132, 0);
  expect_split(plan.combine(Part::both, kAll, 128, false), 132, 66);
  expect_split(plan.combine(Part::send, 48, 128, false), 48, 48);
  expect_split(plan.combine(Part::both, 2, 128, false), 2, 1);
}

/// Between two ranks most blocks finish tokens if each has several; not with LogFMT, which takes
/// long to encode.
TEST(LowLatencyPlan, OfManyTokensABlockMoreFinishThemThanSend) {
  const Plan two = plan_of(128, 2);
  expect_split(two.combine(Part::both, 48, 128, false), 48, 20);
  expect_split(two.combine(Part::both, 8, 128, false), 8, 3);
  expect_split(two.combine(Part::both, 2, 128, false), 2, 1);
  expect_split(two.combine(Part::both, 48, 128, true), 48, 24);
  expect_split(two.combine(Part::both, 48, 96, false), 48, 24);
}

/// Among more ranks no more blocks send than fill the links, unless nearly twice as many can.
TEST(LowLatencyPlan, AsManySendSumsAsFillTheLinks) {
  const Plan plan = plan_of(256);
  expect_split(plan_of(128).combine(Part::both, 48, 128, false), 48, 20);
  expect_split(plan.combine(Part::both, 32, 256, false), 32, 16);
  expect_split(plan.combine(Part::both, 48, 256, false), 48, 20);
  expect_split(plan.combine(Part::both, 71, 256, false), 71, 20);
  expect_split(plan.combine(Part::both, 72, 256, false), 72, 36);
  expect_split(plan.combine(Part::both, 48, 256, true), 48, 24);
  expect_split(plan.combine(Part::both, 48, 96, false), 48, 24);
  expect_split(plan_of(256, kRanks, 4096).combine(Part::both, 48, 256, false), 48, 24);
}

TEST(LowLatencyPlan, APartAloneTakesNoMoreBlocksThanItNeeds) {
  const Plan plan = plan_of(128);
  // Besides the data blocks some publish ids, or weights, and the last speaks for the rank.
  expect_split(plan.dispatch(Part::send, kAll, 128), 32 + 2, 32 + 2);
  expect_split(plan.combine(Part::send, kAll, 128, false), 64 + 3 + 1, 64 + 3 + 1);
  expect_split(plan.combine(Part::receive, kAll, 128, false), 128 + 1, 0);
  // A call with fewer tokens than the maximum.
  expect_split(plan.dispatch(Part::send, kAll, 5), 5 + 1 + 1, 5 + 1 + 1);
  expect_split(plan.combine(Part::receive, kAll, 5, false), 5 + 1, 0);
  expect_split(plan.dispatch(Part::send, kAll, 0), 1 + 1, 1 + 1);
  expect_split(plan.combine(Part::receive, kAll, 0, false), 1, 0);
}

/// With many rows each block spreads two, if it has the warps: a row of 7168 has 14 units and a
/// note in FP8, twice as many units in BF16.
TEST(LowLatencyPlan, WhatReceivesAloneSpreadsTwoRowsABlock) {
  constexpr uint32_t kFp8 = 14, kBf16 = 28;
  const auto receivers = [](uint32_t tokens, uint32_t units) {
    return plan_of(tokens, 2).receivers_alone(kAll, units);
  };
  EXPECT_EQ(receivers(128, kFp8), 128u);
  EXPECT_EQ(receivers(100, kFp8), 100u);
  EXPECT_EQ(receivers(64, kFp8), 72u);
  EXPECT_EQ(receivers(64, 1), 72u);
  EXPECT_EQ(receivers(64, kBf16), kAll);
  // With few rows, one each, and the last block speaks for the rank.
  const Plan few = plan_of(16, 2);
  expect_split(few.dispatch(Part::receive, few.receivers_alone(kAll, kFp8), 16), 32 + 1, 0);
  // Never more than the caller allows, nor fewer than have the memory.
  EXPECT_EQ(plan_of(64, 2).receivers_alone(8, kFp8), 8u);
  const Plan large = make_plan({.experts = 8190, .hidden = 32, .topk = 16, .tokens_max = 192}, 2,
                               AcceleratorKind::gpu, kH200);
  EXPECT_GT(large.receivers_min, kBlocksMin);
  for (uint32_t blocks = large.receivers_min; blocks <= kAll; ++blocks) {
    const uint32_t receivers = large.receivers_alone(blocks, kFp8);
    EXPECT_LE(receivers, blocks);
    EXPECT_LE(large.dispatch_shared_bytes(Part::receive, receivers), kH200.shared_bytes);
  }
}

/// `blocks`: per rank.
void expect_one_shape(uint32_t ranks, uint32_t blocks) {
  Capacity shared = kH200;
  shared.one_grid = true;
  const Plan plan = make_plan({.experts = 288, .hidden = 7168, .topk = 8, .tokens_max = 64}, ranks,
                              AcceleratorKind::gpu, shared);
  const auto shape_of = [&](Part part, uint32_t tokens) {
    const Split dispatch = plan.dispatch(part, blocks, tokens),
                combine = plan.combine(part, blocks, tokens, false);
    const SendRoles roles = plan.send_roles(dispatch, tokens);
    DispatchParams params{};
    params.call.ranks = ranks;
    params.tokens = tokens;
    params.tokens_max = 64;
    params.topk = 8;
    params.experts = 288;
    params.local_experts = 288 / ranks;
    params.row = row_layout({.hidden = 7168}, LowLatencyRows::fp8);
    return std::vector<uint32_t>{dispatch.blocks,      dispatch.send_blocks,
                                 combine.blocks,       combine.send_blocks,
                                 roles.data_blocks,    roles.publish_first,
                                 roles.publish_blocks, plan.dispatch_warps(params, dispatch)};
  };
  for (const Part part : {Part::send, Part::receive, Part::both})
    for (const uint32_t tokens : {0u, 1u, 2u, 9u, 63u})
      EXPECT_EQ(shape_of(part, tokens), shape_of(part, 64)) << tokens << " tokens";
}

/// Ranks that share a GPU launch one grid, however many tokens each has.
TEST(LowLatencyPlan, RanksOfOneGridShapeCallsAlike) {
  expect_one_shape(kRanks, 33);
  expect_one_shape(2, 31);  // With 64 tokens three of seven blocks send in a combine, with fewer
                            // half.
}

TEST(LowLatencyPlan, FewTokensTakeAsManyBlocksAsFindWork) {
  const Plan one = plan_of(1);
  // The last block speaks for the rank.
  expect_split(one.dispatch(Part::both, kAll, 1), 4 + 4 + 1,
               4);  // Ids for four ranks, rows from four.
  // Parts of sums, and weights, for three ranks.
  expect_split(one.combine(Part::both, kAll, 1, false), 3 * (4 + 1) + 1 + 1 + 1, 3 * (4 + 1) + 1);
  expect_split(one.combine(Part::receive, kAll, 1, false), 1 + 1, 0);
  expect_split(plan_of(16).dispatch(Part::both, kAll, 16), 17 + 64 + 1, 16 + 1);
}

/// A block without a span would read weights, although nobody waits until it has read them.
TEST(LowLatencyPlan, ASumHasNoMorePartsThanARowHasSpans) {
  const auto parts = [](uint32_t hidden, uint32_t span_chunks) {
    CombineParams params{};
    params.call.ranks = 2;
    params.call.send_blocks = 66;
    params.tokens_max = 1;
    params.topk = 8;
    params.experts = 36 * params.call.ranks;
    params.pieces = hidden / 8;
    params.divide(span_chunks);
    return params.parts;
  };
  EXPECT_EQ(parts(32, kBf16SpanChunks), 1u);
  EXPECT_EQ(parts(1024, kBf16SpanChunks), 2u);
  EXPECT_EQ(parts(1024, kLogFmtSpanChunks), 4u);
  EXPECT_EQ(parts(7168, kBf16SpanChunks), kSumPartsMax);
}

/// The other blocks need no drained buffer.
TEST(LowLatencyPlan, BlocksThatWriteStagingAreThoseThatHaveAPartOfASum) {
  for (const uint32_t tokens : {1u, 7u, 64u})
    for (uint32_t blocks = 1; blocks <= 70; ++blocks) {
      CombineParams params{};
      params.call.ranks = 4;
      params.call.send_blocks = blocks;
      params.tokens_max = tokens;
      params.topk = 8;
      params.experts = 36 * params.call.ranks;
      params.pieces = 7168 / 8;
      params.divide(kBf16SpanChunks);
      for (uint32_t block = 0; block < blocks; ++block)
        EXPECT_EQ(block < params.call.staging_blocks, block / params.streams < params.parts);
    }
}

TEST(LowLatencyPlan, IdsAreToldByBlocksOfTheirOwnWhereThereAreEnough) {
  const auto expect_roles = [](uint32_t tokens, Part part, uint32_t blocks,
                               const SendRoles& expected, uint32_t ranks = kRanks) {
    const Plan plan = plan_of(tokens, ranks);
    const SendRoles roles = plan.send_roles(plan.dispatch(part, blocks, tokens), tokens);
    EXPECT_EQ(roles.data_blocks, expected.data_blocks);
    EXPECT_EQ(roles.publish_first, expected.publish_first);
    EXPECT_EQ(roles.publish_blocks, expected.publish_blocks);
  };
  expect_roles(128, Part::both, kAll, {16, 16, 1});
  expect_roles(128, Part::both, 48, {12, 0, 12});  // All sending blocks.
  // Sending alone: as many as the links serve, or one per four tokens; the last block speaks for
  // the rank.
  expect_roles(128, Part::send, kAll, {32, 32, 1});
  expect_roles(64, Part::send, kAll, {32, 32, 1});
  expect_roles(16, Part::send, kAll, {16, 16, 1});
  expect_roles(256, Part::send, kAll, {64, 64, 1});
  expect_roles(128, Part::send, 24, {23, 23, 1});
  expect_roles(1, Part::both, kAll, {1, 1, 3});
  expect_roles(1, Part::send, kAll, {1, 1, 1});
  // Between two ranks more blocks send.
  expect_roles(128, Part::both, kAll, {32, 32, 4}, 2);
  expect_roles(128, Part::both, 48, {13, 0, 13}, 2);
  expect_roles(128, Part::send, kAll, {128, 128, 1}, 2);  // The last of the 130 speaks.
  expect_roles(64, Part::both, kAll, {32, 32, 2}, 2);
  expect_roles(16, Part::both, kAll, {16, 16, 2}, 2);
}

/// A rank with tokens to send waits for its own, so some block must move them and some must publish
/// ids, for any number of blocks: on hosts, which have one data block, as on GPUs.
TEST(LowLatencyPlan, TokensAndIdsAreSentWhateverTheBlocks) {
  for (const AcceleratorKind kind : {AcceleratorKind::host, AcceleratorKind::gpu})
    for (const uint32_t ranks : {1u, 2u, 3u, 4u})
      for (const uint32_t tokens : {1u, 31u, 63u, 64u, 96u, 127u, 128u, 512u}) {
        const Capacity& capacity = kind == AcceleratorKind::gpu ? kH200 : kHost;
        const Plan plan = make_plan({.experts = 12, .hidden = 64, .topk = 2, .tokens_max = tokens},
                                    ranks, kind, capacity);
        for (const Part part : {Part::send, Part::both})
          for (uint32_t blocks = 2; blocks <= capacity.multiprocessors; ++blocks) {
            SCOPED_TRACE(fmt::format("{} ranks, {} tokens, {} blocks, part {}", ranks, tokens,
                                     blocks, static_cast<int>(part)));
            const Split split = plan.dispatch(part, blocks, tokens);
            const SendRoles roles = plan.send_roles(split, tokens);
            ASSERT_GE(roles.data_blocks, 1u);
            ASSERT_LE(roles.data_blocks, split.send_blocks);
            ASSERT_EQ(roles.publish_first, roles.apart() ? roles.data_blocks : 0);
            ASSERT_GE(roles.publish_blocks, 1u);
            // All have a role, except the last of those that only send, which speaks for the rank.
            const bool last_speaks =
                part == Part::send && split.send_blocks > roles.data_blocks + 1;
            ASSERT_EQ(roles.publish_first + roles.publish_blocks, split.send_blocks - last_speaks);
          }
      }
}

/// A receiving block holds a bit per expert and token, and the ids of the tokens that it spreads.
TEST(LowLatencyPlan, BlocksHaveTheSharedMemoryThatADispatchTakes) {
  const auto plan_of = [](uint32_t experts, uint32_t tokens_max) {
    return make_plan({.experts = experts, .hidden = 7168, .topk = 8, .tokens_max = tokens_max}, 8,
                     AcceleratorKind::gpu, kH200);
  };
  const Plan plan = plan_of(288, 4096);
  EXPECT_EQ(plan.dispatch_blocks_min(Part::both), 19u + 6);  // 19 receive.
  EXPECT_EQ(plan.dispatch_blocks_min(Part::receive), 19u);
  EXPECT_EQ(plan.dispatch_blocks_min(Part::send), kBlocksMin);
  EXPECT_LE(plan.dispatch_shared_bytes(Part::both, 25), kH200.shared_bytes);
  EXPECT_GT(plan.dispatch_shared_bytes(Part::both, 24), kH200.shared_bytes);
  EXPECT_EQ(plan_of(288, 128).dispatch_blocks_min(Part::both), kBlocksMin);
  EXPECT_EQ(plan_of(1024, 4096).dispatch_blocks_min(Part::both), 0u);
  // The most tokens that options allow.
  EXPECT_EQ(plan_of(8, INT32_MAX / 8).dispatch_blocks_min(Part::both), 0u);
}

/// Hosts use few blocks by default, but enough for the shared memory.
TEST(LowLatencyPlan, ADefaultOfBlocksSuffices) {
  const auto blocks_of = [](uint32_t tokens_max) {
    return make_plan({.experts = 8, .hidden = 32, .topk = 16, .tokens_max = tokens_max}, 1,
                     AcceleratorKind::host, kHost)
        .blocks_max;
  };
  EXPECT_EQ(blocks_of(64), 3u);
  EXPECT_EQ(blocks_of(8192), 5u);
}

/// Kernels count in 32 bits, and the longest wait for a rank must fit as well.
TEST(LowLatencyPlan, TimeoutsFitTheClock) {
  using namespace std::chrono_literals;
  EXPECT_EQ(timeout_units(1ns), 1u);
  EXPECT_EQ(timeout_units(1ms), 976u);
  const uint32_t most = timeout_units(24h);
  EXPECT_EQ(most, timeout_units(15min));
  EXPECT_GT(most, timeout_units(14min));
  EXPECT_LE(uint64_t{kTimesLate + 1} * most, UINT32_MAX);
}

/// With at least two blocks, the caller's budget is never exceeded and both roles exist.
TEST(LowLatencyPlan, NoBudgetIsExceeded) {
  for (const uint32_t tokens : {1u, 2u, 7u, 64u, 512u})
    for (uint32_t blocks = 2; blocks <= kAll; ++blocks)
      for (const Split& split : {plan_of(tokens).dispatch(Part::both, blocks, tokens),
                                 plan_of(tokens).combine(Part::both, blocks, tokens, false)}) {
        EXPECT_LE(split.blocks, blocks);
        EXPECT_GE(split.send_blocks, 1u);
        EXPECT_GT(split.blocks, split.send_blocks);
      }
}

}  // namespace
}  // namespace tokenyard::low_latency
