/// Plans are pure arithmetic, so many can be checked.
#include "expert_parallel/throughput/host/plan.hpp"

#include <gtest/gtest.h>

#include <map>

#include "expert_parallel/throughput/kernels/combine_shared.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"

namespace tokenyard::throughput {
namespace {

constexpr Capacity kH200{.multiprocessors = 132, .shared_bytes = 227 * 1024};

TEST(Plan, SegmentsCoverARowAndFitTheirStages) {
  for (uint32_t hidden = 8; hidden < 300'000; hidden += hidden < 4096 ? 8 : 5000) {
    const uint32_t row_bytes = hidden / 8 * 16;
    for (const uint32_t available : {1024u, 40'000u, 220'000u}) {
      const StagePlan plan = plan_stages(row_bytes, available, 14'336, 2, kStagesMax);
      uint32_t covered = 0;
      for (uint32_t segment = 0; segment < plan.segments; ++segment) {
        const uint32_t bytes = plan.bytes_of(segment, row_bytes);
        ASSERT_GT(bytes, 0u);
        ASSERT_EQ(bytes % 16, 0u);
        ASSERT_LE(bytes, plan.stage_bytes);
        ASSERT_LE(bytes, 14'336u);
        covered += bytes;
      }
      ASSERT_EQ(covered, row_bytes);
      ASSERT_EQ(plan.stage_bytes % 128, 0u);
      ASSERT_GE(plan.stages, 2u);
      ASSERT_LT(plan.lag, plan.stages);
      ASSERT_LE(plan.stages * plan.stage_bytes, available);
    }
  }
}

TEST(Plan, TheQuotedWorkloadMovesWholeRows) {
  const Plan plan = make_plan({.ranks = 4, .experts = 256, .row_bytes = 14'336, .sms = 0},
                              AcceleratorKind::gpu, kH200);
  EXPECT_EQ(plan.blocks, 16u);
  EXPECT_EQ(plan.dispatch.segments, 1u);
  EXPECT_GE(plan.movers * plan.dispatch.stages, 14u);
  EXPECT_EQ(plan.combine.segments, 1u);
  EXPECT_GE(plan.combine_groups * plan.combine.stages, 14u);
}

TEST(Plan, ShortRowsHaveMoreMovers) {
  const auto movers = [](uint32_t row_bytes) {
    return make_plan({.ranks = 4, .experts = 256, .row_bytes = row_bytes, .sms = 0},
                     AcceleratorKind::gpu, kH200)
        .movers;
  };
  EXPECT_EQ(movers(4096), 8u);
  EXPECT_EQ(movers(7168), 3u);
}

// A group's time per row hardly depends on the row's length.
TEST(Plan, ShortRowsAreSummedByMoreGroups) {
  const std::map<uint32_t, uint32_t> groups = {{512, 4},    {4096, 4},   {8192, 3},
                                               {10'240, 2}, {14'336, 2}, {28'672, 2}};
  for (const auto& [row_bytes, expected] : groups) {
    const Plan plan = make_plan({.ranks = 4, .experts = 256, .row_bytes = row_bytes, .sms = 0},
                                AcceleratorKind::gpu, kH200);
    EXPECT_EQ(plan.combine_groups, expected) << row_bytes;
    EXPECT_LE(plan.combine_groups * plan.combine.stages, kCombineStagesMax) << row_bytes;
    // All warps but the one that fetches weights are divided evenly, and can hold a segment.
    const uint32_t of_group = plan.combine_warps / plan.combine_groups;
    EXPECT_EQ(plan.combine_groups * of_group + 1, plan.combine_warps) << row_bytes;
    EXPECT_LE(plan.combine.segment_bytes, (of_group - 1) * kWarpLanes * kPiecesALane * 16)
        << row_bytes;
  }
}

TEST(Plan, SharedMemoryOfBothKernelsIsWithinTheDevices) {
  for (const uint32_t ranks : {1, 4, 8, 72}) {
    const PlanInput input{.ranks = ranks, .experts = ranks * 32, .row_bytes = 14'336, .sms = 0};
    const Plan plan = make_plan(input, AcceleratorKind::gpu, kH200);
    const DispatchTail dispatch{
        .warps = plan.warps,
        .ranks = ranks,
        .experts = input.experts,
        .local_experts = 32,
        .stages_bytes = plan.movers * plan.dispatch.stages * plan.dispatch.stage_bytes};
    EXPECT_LE(sizeof(DispatchShared) + dispatch.bytes(), kH200.shared_bytes);
    const CombineTail combine{
        .ranks = ranks,
        .stages_bytes = plan.combine_groups * plan.combine.stages * plan.combine.stage_bytes};
    EXPECT_LE(sizeof(CombineShared) + combine.bytes(), kH200.shared_bytes);
    for (const uint32_t pullers : {1, 16, 132}) {
      const PullPlan pulls = plan_pulls(plan, ranks, pullers, AcceleratorKind::gpu);
      EXPECT_LE(pulls.ranks_a_step, pulls.rings.stages);
      EXPECT_LE(pulls.rings.stages, plan.combine.stages);
      EXPECT_LE(pulls.pullers, pullers);
      EXPECT_GE(pulls.pullers, std::min(pullers, 16u)) << "twice as many as the links need";
    }
  }
}

TEST(Plan, TooManyExpertsForSharedMemoryAreRefusedByName) {
  try {
    make_plan({.ranks = 4, .experts = 1 << 20, .row_bytes = 128, .sms = 0}, AcceleratorKind::gpu,
              kH200);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "experts");
  }
}

TEST(Plan, BlocksThatPullLeaveSomeThatPrepare) {
  for (const uint32_t ranks : {1, 2, 4, 72})
    for (uint32_t blocks = 2; blocks <= 132; ++blocks)
      for (const PreparedRow prepared : {kCopiedRow, PreparedRow{results_a_row(ranks, 8)}}) {
        const uint32_t pullers = choose_pullers(ranks, blocks, prepared);
        EXPECT_GE(pullers, 1u);
        EXPECT_LT(pullers, blocks);
      }
}

TEST(Plan, RowsArePreparedBesidePullsWhereBlocksCanDoBoth) {
  const auto beside = [](uint32_t ranks, uint32_t blocks, bool copied) {
    return prepares_beside(ranks, blocks,
                           copied ? kCopiedRow : PreparedRow{results_a_row(ranks, 8)},
                           AcceleratorKind::gpu);
  };
  for (const bool copied : {true, false}) {
    EXPECT_FALSE(beside(4, 1, copied)) << "one block pulls";
    EXPECT_FALSE(beside(4, 8, copied)) << "8 blocks are busy pulling";
    EXPECT_TRUE(beside(4, 16, copied));
    EXPECT_FALSE(beside(2, 16, copied)) << "of more local rows";
    EXPECT_TRUE(beside(2, 24, copied));
  }
  EXPECT_FALSE(beside(1, 16, true)) << "nobody else reads them";
  EXPECT_TRUE(prepares_beside(4, 2, kCopiedRow, AcceleratorKind::host));
}

TEST(Plan, ResultsOfARowAreThoseOfItsExpertsHere) {
  EXPECT_DOUBLE_EQ(results_a_row(1, 8), 8);
  EXPECT_DOUBLE_EQ(results_a_row(2, 1), 1);
  EXPECT_NEAR(results_a_row(4, 8), 2.22, 0.01);
}

/// Every token belongs to exactly one block's range, and is kept or claimed exactly once.
TEST(Plan, SharesCoverEveryTokenOnce) {
  const Plan plan{.blocks = 5,
                  .warps = 4,
                  .movers = 2,
                  .dispatch = {},
                  .combine_warps = 3,
                  .combine_groups = 1,
                  .combine = {},
                  .kept_percent = 30,
                  .kept_tokens = 8,
                  .pulls_kept_percent = 75,
                  .pulls_kept_tokens = 8};
  for (uint32_t tokens = 0; tokens < 200; ++tokens) {
    const Shares shares = share_tokens(tokens, 3, plan);
    EXPECT_EQ(shares.claims == 0, tokens <= plan.blocks * plan.kept_tokens);
    std::vector<uint32_t> moved(tokens);
    const auto range_of = [&](uint32_t block) {
      const uint32_t begin = std::min(block * shares.tokens_a_block, tokens);
      return std::pair(begin, std::min(begin + shares.tokens_a_block, tokens));
    };
    for (uint32_t block = 0; block < plan.blocks; ++block) {
      const auto [begin, end] = range_of(block);
      for (uint32_t token = begin; token < std::min(begin + shares.tokens_kept, end); ++token)
        ++moved[token];
    }
    for (uint32_t claim = 0; claim < shares.claims; ++claim) {
      const auto [begin, end] = range_of(claim % plan.blocks);
      const uint32_t first = begin + shares.tokens_kept + claim / plan.blocks * kTokensAClaim;
      for (uint32_t token = first; token < std::min(first + kTokensAClaim, end); ++token)
        ++moved[token];
    }
    EXPECT_EQ(moved, std::vector<uint32_t>(tokens, 1));
  }
}

/// A claim takes as long as a few rows, so small calls leave nothing to claim.
TEST(Plan, GroupsOfACombineKeepAllOfAFewTokens) {
  Plan plan{};
  plan.pulls_kept_percent = 75;
  plan.pulls_kept_tokens = 8;
  EXPECT_EQ(share_of_pulls(0, 32, plan), 0u);
  EXPECT_EQ(share_of_pulls(128, 32, plan), 4u);
  EXPECT_EQ(share_of_pulls(250, 32, plan), 8u);
  EXPECT_EQ(share_of_pulls(4096, 32, plan), 96u);
}

/// No two words of a window overlap, and all are within it.
TEST(Control, WordsAreApart) {
  const ControlLayout layout{.ranks = 3, .blocks_max = 2, .local_experts_max = 5, .rows_max = 7};
  std::vector<bool> taken(layout.bytes());
  const auto take = [&](size_t at, size_t bytes) {
    ASSERT_EQ(at % (bytes % 8 == 0 ? 8 : 4), 0u);
    ASSERT_LE(at + bytes, taken.size());
    for (size_t i = at; i < at + bytes; ++i) {
      ASSERT_FALSE(taken[i]) << "byte " << i;
      taken[i] = true;
    }
  };
  for (uint32_t source = 0; source < 3; ++source) {
    for (uint32_t word = 0; word < kReadyWords; ++word)
      take(layout.ready_word(source, static_cast<ReadyWord>(word)), sizeof(Stamped));
    for (uint32_t block = 0; block < 2; ++block) {
      for (uint32_t rank = 0; rank < 3; ++rank)
        take(layout.count(source, block, rank), sizeof(Stamped));
      for (uint32_t expert = 0; expert < 5; ++expert)
        take(layout.expert(source, block, expert), sizeof(Stamped));
      take(layout.refusal(source, block), sizeof(Refusal));
      take(layout.finished(source, block), sizeof(uint32_t));
      take(layout.published(source, block), sizeof(uint32_t));
    }
  }
  for (uint32_t row = 0; row < 7; ++row) take(layout.arrived(row), sizeof(uint32_t));
  EXPECT_EQ(std::count(taken.begin(), taken.end(), false), 0);
}

}  // namespace
}  // namespace tokenyard::throughput
