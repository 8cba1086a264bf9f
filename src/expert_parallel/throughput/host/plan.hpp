/// Shapes of kernels, chosen from the sizes of a call and from what the device has. All of it is
/// arithmetic: nothing here touches a device.
#pragma once

#include <cstdint>
#include <string>

#include "device/accelerator.hpp"
#include "expert_parallel/throughput/kernels/combine.hpp"
#include "expert_parallel/throughput/kernels/dispatch.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Blocks of a call on a GPU, unless the caller chooses. 8 multiprocessors saturate the links of an
/// H200; twice that leaves room for local rows and for unequal shares.
inline constexpr uint32_t kBlocksGpu = 16;

/// What a call looks like whose rows are of one size.
struct Plan {
  uint32_t blocks, warps;
  uint32_t movers;     ///< dispatch: warps of a block that move rows
  StagePlan dispatch;  ///< of each mover
  uint32_t combine_warps;
  uint32_t combine_groups;  ///< see combine.hpp
  StagePlan combine;        ///< of each group, in all of a block's shared memory
  uint32_t kept_percent;    ///< dispatch: of a block's tokens, that nobody else claims
  uint32_t kept_tokens;     ///< a block that has no more keeps all of them
  uint32_t pulls_kept_percent, pulls_kept_tokens;  ///< combine: the same of a group
  std::string reason = {};                         ///< for `blocks`, in a sentence
};

/// What a plan depends on beside the device.
struct PlanInput {
  uint32_t ranks, experts;
  uint32_t row_bytes;
  uint32_t sms;  ///< or 0: chosen here
  ExpertParallelOptions::Tuning tuning = {};
};

/// Throws InvalidArgument where no plan fits the device's shared memory.
Plan make_plan(const PlanInput& input, AcceleratorKind kind, const Capacity& capacity);

/// How rows of `row_bytes` pass through at most `available` bytes of shared memory: as few segments
/// as leave enough stages to hide latency. Segments are at most `segment_bytes_max`.
StagePlan plan_stages(uint32_t row_bytes, uint32_t available, uint32_t segment_bytes_max,
                      uint32_t stages_wanted, uint32_t stages_max);

/// The rings of `movers` warps in `available` bytes of shared memory, that of each.
StagePlan plan_rings(uint32_t row_bytes, uint32_t available, uint32_t movers, AcceleratorKind kind);

/// Groups of warps that fetch and sum rows in `available` bytes of shared memory.
struct SumsPlan {
  uint32_t groups, warps;  ///< warps: of all groups
  StagePlan rings;         ///< of each group
};
SumsPlan plan_sums(uint32_t row_bytes, uint32_t available, AcceleratorKind kind);

/// How `tokens` of a rank are shared among blocks and warps.
Shares share_tokens(uint32_t tokens, uint32_t topk, const Plan& plan);
/// The same where rows shall leave in the order of their tokens.
Shares share_tokens_in_order(uint32_t tokens, uint32_t topk, const Plan& plan);

/// The blocks of a combine that pull, of as many as may, and their rings.
struct PullPlan {
  uint32_t pullers;
  StagePlan rings;  ///< of each group
  uint32_t ranks_a_step;
};
/// Of a rank's tokens, so many of each group that pulls are pulled by nobody else.
uint32_t share_of_pulls(uint32_t tokens, uint32_t groups, const Plan& plan);
PullPlan plan_pulls(const Plan& plan, uint32_t ranks, uint32_t pullers, AcceleratorKind kind);

/// What the other blocks of a combine do for each row that its rank has received: they sum so many
/// results, in the mean, or copy it, unless it is for the rank itself.
struct PreparedRow {
  double results;  ///< 0: copied
};
inline constexpr PreparedRow kCopiedRow{0};
/// Of at least two blocks, how many pull, so that they are done when the others are.
uint32_t choose_pullers(uint32_t ranks, uint32_t blocks, PreparedRow prepared);

/// Whether blocks of a combine prepare rows beside those that pull, or all of that comes first: of
/// few blocks, which are busy pulling, a copy by the whole device takes less time, and so do sums
/// by a kernel that does nothing else. On the host always beside, so that it is tested.
bool prepares_beside(uint32_t ranks, uint32_t blocks, PreparedRow prepared, AcceleratorKind kind);

/// Experts of one rank that a token goes to, of those tokens that go there at all, if all experts
/// are alike.
double results_a_row(uint32_t ranks, uint32_t topk);

/// Of the blocks of a dispatch that groups rows by expert as they come, how many send first and
/// then group; the others group from the start.
uint32_t choose_senders(uint32_t ranks, uint32_t blocks);

}  // namespace tokenyard::throughput
