/// Shapes of kernels, chosen from the sizes of a call and the device's capacity. Pure arithmetic:
/// nothing here touches a device.
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

/// The shape of calls with one row size.
struct Plan {
  uint32_t blocks, warps;
  uint32_t movers;     ///< dispatch: warps per block that move rows
  StagePlan dispatch;  ///< per mover
  uint32_t combine_warps;
  uint32_t combine_groups;  ///< see combine.hpp
  StagePlan combine;        ///< per group, in all of a block's shared memory
  uint32_t kept_percent;    ///< dispatch: percentage of a block's tokens that no other block claims
  uint32_t kept_tokens;     ///< a block with no more tokens keeps all of them
  uint32_t pulls_kept_percent, pulls_kept_tokens;  ///< combine: the same per group
  std::string reason = {};                         ///< of `blocks`, as a sentence
};

/// Inputs of a plan besides the device.
struct PlanInput {
  uint32_t ranks, experts;
  uint32_t row_bytes;
  uint32_t sms;  ///< 0: chosen here
  ExpertParallelOptions::Tuning tuning = {};
};

/// Throws InvalidArgument if no plan fits the device's shared memory.
Plan make_plan(const PlanInput& input, AcceleratorKind kind, const Capacity& capacity);

/// Returns how rows of `row_bytes` pass through at most `available` bytes of shared memory: in as
/// few segments as leave enough stages to hide latency. Segments have at most `segment_bytes_max`
/// bytes.
StagePlan plan_stages(uint32_t row_bytes, uint32_t available, uint32_t segment_bytes_max,
                      uint32_t stages_wanted, uint32_t stages_max);

/// Returns the ring of each of `movers` warps in `available` bytes of shared memory.
StagePlan plan_rings(uint32_t row_bytes, uint32_t available, uint32_t movers, AcceleratorKind kind);

/// Groups of warps that fetch and sum rows in `available` bytes of shared memory.
struct SumsPlan {
  uint32_t groups, warps;  ///< warps: over all groups
  StagePlan rings;         ///< per group
};
SumsPlan plan_sums(uint32_t row_bytes, uint32_t available, AcceleratorKind kind);

/// Returns how a rank's tokens are divided among blocks and warps.
Shares share_tokens(uint32_t tokens, uint32_t topk, const Plan& plan);
/// The same, if rows must leave in the order of their tokens.
Shares share_tokens_in_order(uint32_t tokens, uint32_t topk, const Plan& plan);

/// The pulling blocks of a combine, and their rings.
struct PullPlan {
  uint32_t pullers;
  StagePlan rings;  ///< per group
  uint32_t ranks_a_step;
};
/// Returns how many tokens each pulling group keeps for itself.
uint32_t share_of_pulls(uint32_t tokens, uint32_t groups, const Plan& plan);
PullPlan plan_pulls(const Plan& plan, uint32_t ranks, uint32_t pullers, AcceleratorKind kind);

/// Work of the other blocks of a combine per received row: they sum `results` results on average,
/// or copy the row unless it is for this rank itself.
struct PreparedRow {
  double results;  ///< 0: copied
};
inline constexpr PreparedRow kCopiedRow{0};
/// Returns how many of at least two blocks pull, so that they finish together with the others.
uint32_t choose_pullers(uint32_t ranks, uint32_t blocks, PreparedRow prepared);

/// Returns whether blocks of a combine prepare rows while others pull, rather than a copy or a
/// kernel before it: with few blocks, which are busy pulling, a copy by the whole device is faster,
/// and so are sums by a kernel that does nothing else. Always true on the host, so that it is
/// tested.
bool prepares_beside(uint32_t ranks, uint32_t blocks, PreparedRow prepared, AcceleratorKind kind);

/// Returns the mean number of a rank's experts per token that goes there, if all experts are
/// equally likely.
double results_a_row(uint32_t ranks, uint32_t topk);

/// Returns how many blocks of a dispatch that groups rows by expert as they arrive send first; the
/// others group from the start.
uint32_t choose_senders(uint32_t ranks, uint32_t blocks);

}  // namespace tokenyard::throughput
