#include "expert_parallel/throughput/host/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "expert_parallel/throughput/kernels/combine_shared.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::throughput {

namespace {

constexpr uint32_t kStageAlignment = 128;  // Stores from less aligned stages are slow (H200).

// Least stages wanted in a ring, and most. Few on the host, so that even small tests wrap around,
// and short, so that they move rows in segments.
constexpr uint32_t kStagesWantedGpu = 8;
constexpr uint32_t kStagesWantedHost = 2, kStagesMaxHost = 4;
constexpr uint32_t kSegmentBytesMaxHost = 2048;

constexpr uint32_t kWarpsGpu = 16;
constexpr uint32_t kBlocksHost = 2, kWarpsHost = 4;
// Warps that a combine divides into groups, at least two: a group takes half a microsecond per row
// of any length. 7 warps can sum a row of 7168 in registers.
constexpr uint32_t kSumsWarpsGpu = 16, kGroupsMin = 2;
constexpr uint32_t kSummersHost = 1;
// A mover needs 0.65 us per row; the links need 0.64 us per block for a row of 14 KB (16 blocks,
// H200), and less for a shorter one.
constexpr uint32_t kMoversGpu = 3, kMoversHost = 2;
// 4096 rows of 2 KB on 16 blocks: 70 us with 3 movers, 47 with 6, 42 with 8; rows of 7 KB: no
// difference.
constexpr uint32_t kShortRowBytes = 4096, kMoversOfShortRows = 8;
static_assert(kWarpsGpu * kWarpLanes <= kDispatchThreadsMax);
static_assert((kSumsWarpsGpu + 1) * kWarpLanes <= kCombineThreadsMax);
static_assert(kWarpsHost >= kDispatchWarpsMin);
static_assert(kMoversGpu < kWarpsGpu && kMoversGpu <= kMoversMax);
static_assert(kMoversOfShortRows < kWarpsGpu && kMoversOfShortRows <= kMoversMax);
static_assert(kMoversHost < kWarpsHost && kMoversHost <= kMoversMax);

// If blocks are slower than the links, all are about equally fast, and most tokens stay with the
// block that counted them; if the links are the bottleneck, they serve blocks very unequally. A
// block stores about 44 GB/s, of which 1 / ranks stays local; the links carry 347 (H200).
constexpr uint32_t kKeptPercent = 30, kKeptPercentSlowBlocks = 70;
constexpr uint32_t kBlocksForLinks = 8;

// A combine draws claims well ahead, but a short one would still begin by waiting for its first.
constexpr uint32_t kPullsKeptPercentGpu = 75, kPullsKeptPercentHost = 50, kPullsKeptTokens = 8;

// Bytes of loads that should be in flight over the links: with fewer or more the links get slower
// (4 H200, 16 to 32 blocks: 0.9 MB 514 to 562 us, 1.4 MB 510 to 519, 2 MB 509 to 516, three
// quarters of the shared memory of 32 blocks 582), and all other traffic waits longer.
constexpr double kPulledAtOnceGpu = 1.7e6;
constexpr uint32_t kStagesWhilePulling = 3;  // Least stages per group.

// Bytes per microsecond of a block (H200): pulling rows from all ranks; reading results from its
// own memory, and writing their sums there; copying rows. Below: of the links, and of a copy within
// the GPU's memory that uses all of it.
constexpr double kPulledBytes = 52e3, kReadBytes = 89e3, kWrittenBytes = 81e3;
constexpr double kPassedOnBytes = 40e3;
// How much longer a block takes to sum beside pulling blocks than alone.
constexpr double kSummedBeside = 1.18;
constexpr double kLinkBytes = 334e3, kCopiedBytes = 2100e3;

constexpr std::array<uint32_t, 8> kLags = {22, 16, 10, 6, 4, 2, 1, 0};  // See wait_read_but.

/// Gives tests rows of both kinds.
uint32_t groups_on_host(uint32_t row_bytes) {
  constexpr uint32_t kShortRow = 128;
  return row_bytes <= kShortRow ? 3 : 2;
}

uint32_t ceil_divide(uint32_t value, uint32_t by) {
  return (value + by - 1) / by;
}

uint32_t round_up(uint32_t value, uint32_t to) {
  return ceil_divide(value, to) * to;
}

/// Returns a lag with which stores may still read about two thirds of the ring while the rest is
/// loaded (of 14 stages, 10).
uint32_t lag_within(uint32_t most) {
  return *std::find_if(kLags.begin(), kLags.end(), [&](uint32_t lag) { return lag <= most; });
}
uint32_t lag_for(uint32_t stages) {
  return lag_within(std::min(stages * 5 / 7, stages - 1));
}

void choose_blocks(const PlanInput& input, bool gpu, const Capacity& capacity, Plan& plan) {
  plan.blocks = input.sms;
  if (input.sms != 0) {
    plan.reason = fmt::format("{}, as asked for", input.sms);
    return;
  }
  const uint32_t wanted = gpu ? kBlocksGpu : kBlocksHost;
  plan.blocks = std::min(wanted, capacity.multiprocessors);
  if (plan.blocks < wanted)
    plan.reason = fmt::format("{}: all multiprocessors of the device", plan.blocks);
  else if (!gpu)
    plan.reason =
        fmt::format("{} blocks on the host: a single one would show no races", plan.blocks);
  else if (input.ranks == 1)
    plan.reason = fmt::format("{}: rows only move within this GPU", plan.blocks);
  else
    plan.reason = fmt::format(
        "{}: 8 keep the links of an H200 busy, the rest carry local rows and even out the blocks",
        plan.blocks);
}

uint32_t choose_kept_percent(const PlanInput& input, uint32_t blocks) {
  if (input.tuning.kept_percent != 0) return input.tuning.kept_percent;
  const bool slow_blocks = blocks * (input.ranks - 1) <= kBlocksForLinks * input.ranks;
  return slow_blocks ? kKeptPercentSlowBlocks : kKeptPercent;
}

/// Returns the share of a token's rows that are on other ranks.
double remote_share(uint32_t ranks) {
  return (ranks - 1.0) / ranks;
}

/// Returns a block's time per byte of pulled rows.
double preparing(uint32_t ranks, PreparedRow prepared) {
  if (prepared.results == 0) return remote_share(ranks) / kPassedOnBytes;
  return prepared.results / kReadBytes + 1 / kWrittenBytes;
}

uint32_t shared_bytes_left(const Capacity& capacity, size_t used) {
  return used >= capacity.shared_bytes ? 0 : static_cast<uint32_t>(capacity.shared_bytes - used);
}

}  // namespace

StagePlan plan_stages(uint32_t row_bytes, uint32_t available, uint32_t segment_bytes_max,
                      uint32_t stages_wanted, uint32_t stages_max) {
  const uint32_t stage_limit = available / stages_wanted / kStageAlignment * kStageAlignment;
  const uint32_t segment_limit = std::min(segment_bytes_max / 16 * 16, stage_limit);
  if (segment_limit == 0) return {};
  StagePlan plan{};
  plan.segments = ceil_divide(row_bytes, segment_limit);
  plan.segment_bytes = round_up(ceil_divide(row_bytes, plan.segments), 16);
  plan.segments = ceil_divide(row_bytes, plan.segment_bytes);
  plan.stage_bytes = round_up(plan.segment_bytes, kStageAlignment);
  plan.stages = std::min({available / plan.stage_bytes, stages_max, kStagesMax});
  plan.lag = lag_for(plan.stages);
  return plan;
}

StagePlan plan_rings(uint32_t row_bytes, uint32_t available, uint32_t movers,
                     AcceleratorKind kind) {
  if (kind != AcceleratorKind::gpu)
    return plan_stages(row_bytes, available / movers, kSegmentBytesMaxHost, kStagesWantedHost,
                       kStagesMaxHost);
  return plan_stages(row_bytes, available / movers, row_bytes,
                     std::max(ceil_divide(kStagesWantedGpu, movers), kStagesWantedHost),
                     kDispatchStagesMax / movers);
}

SumsPlan plan_sums(uint32_t row_bytes, uint32_t available, AcceleratorKind kind) {
  const bool gpu = kind == AcceleratorKind::gpu;
  constexpr uint32_t kBytesAWarp = kWarpLanes * kPiecesALane * 16;
  const uint32_t needed = ceil_divide(row_bytes, kBytesAWarp);
  const uint32_t groups =
      gpu ? std::clamp(kSumsWarpsGpu / (needed + 1), kGroupsMin, kCombineGroupsMax)
          : groups_on_host(row_bytes);
  const uint32_t summers = gpu ? kSumsWarpsGpu / groups - 1 : kSummersHost;
  const uint32_t wanted = gpu ? kStagesWantedGpu : kStagesWantedHost;
  return {.groups = groups,
          .warps = groups * (summers + 1),
          .rings =
              plan_stages(row_bytes, available / groups, summers * kBytesAWarp,
                          std::max(ceil_divide(wanted, groups), kStagesWantedHost),
                          gpu ? std::min(kStagesMax, kCombineStagesMax / groups) : kStagesMaxHost)};
}

Plan make_plan(const PlanInput& input, AcceleratorKind kind, const Capacity& capacity) {
  const bool gpu = kind == AcceleratorKind::gpu;
  Plan plan{};
  choose_blocks(input, gpu, capacity, plan);
  plan.warps = gpu ? kWarpsGpu : kWarpsHost;
  const uint32_t ranks = input.ranks, row_bytes = input.row_bytes;

  const DispatchTail dispatch_tail{.warps = plan.warps,
                                   .ranks = ranks,
                                   .experts = input.experts,
                                   .local_experts = ceil_divide(input.experts, ranks),
                                   .stages_bytes = 0};
  const uint32_t for_dispatch = shared_bytes_left(
      capacity, round_up(sizeof(DispatchShared), kStageAlignment) + dispatch_tail.bytes());
  const uint32_t movers = !gpu                          ? kMoversHost
                          : row_bytes <= kShortRowBytes ? kMoversOfShortRows
                                                        : kMoversGpu;
  plan.movers = std::min(input.tuning.movers != 0 ? input.tuning.movers : movers,
                         std::min(kMoversMax, plan.warps - 1));
  plan.dispatch = plan_rings(row_bytes, for_dispatch, plan.movers, kind);

  const CombineTail combine_tail{.ranks = ranks, .stages_bytes = 0};
  const uint32_t for_combine = shared_bytes_left(
      capacity, round_up(sizeof(CombineShared), kStageAlignment) + combine_tail.bytes());
  const SumsPlan sums = plan_sums(row_bytes, for_combine, kind);
  plan.combine_groups = sums.groups;
  plan.combine_warps = sums.warps + 1;  // Plus the one that fetches weights.
  plan.combine = sums.rings;

  if (plan.dispatch.stages == 0 || plan.combine.stages == 0)
    throw InvalidArgument(
        "experts",
        fmt::format("few enough for counters and rows to fit in {} bytes of shared memory",
                    capacity.shared_bytes),
        fmt::format("{} experts and {} ranks", input.experts, ranks));
  if (input.tuning.stages != 0) {
    plan.dispatch.stages = std::min(plan.dispatch.stages, input.tuning.stages);
    plan.dispatch.lag = lag_for(plan.dispatch.stages);
  }
  if (input.tuning.lag != 0)
    plan.dispatch.lag = lag_within(std::min(input.tuning.lag, plan.dispatch.stages - 1));
  plan.kept_percent = choose_kept_percent(input, plan.blocks);
  // These fit in the rings before their destinations are known, and a claim takes a microsecond.
  if (gpu && input.tuning.kept_percent == 0)
    plan.kept_tokens = plan.movers * plan.dispatch.stages / plan.dispatch.segments;
  plan.pulls_kept_percent = input.tuning.kept_percent != 0 ? input.tuning.kept_percent
                            : gpu                          ? kPullsKeptPercentGpu
                                                           : kPullsKeptPercentHost;
  if (gpu && input.tuning.kept_percent == 0) plan.pulls_kept_tokens = kPullsKeptTokens;
  return plan;
}

uint32_t share_of_pulls(uint32_t tokens, uint32_t groups, const Plan& plan) {
  const uint32_t of_group = ceil_divide(tokens, groups);
  return of_group <= plan.pulls_kept_tokens ? of_group : of_group * plan.pulls_kept_percent / 100;
}

Shares share_tokens(uint32_t tokens, uint32_t topk, const Plan& plan) {
  Shares shares{};
  shares.tokens_a_block = ceil_divide(tokens, plan.blocks);
  shares.tokens_a_step = std::max(kWarpLanes / topk, 1u);
  shares.tokens_kept = shares.tokens_a_block <= plan.kept_tokens
                           ? shares.tokens_a_block
                           : ceil_divide(shares.tokens_a_block * plan.kept_percent, 100);
  shares.claims =
      plan.blocks * ceil_divide(shares.tokens_a_block - shares.tokens_kept, kTokensAClaim);
  return shares;
}

Shares share_tokens_in_order(uint32_t tokens, uint32_t topk, const Plan& plan) {
  Shares shares = share_tokens(tokens, topk, plan);
  shares.tokens_kept = 0;
  shares.claims = ceil_divide(tokens, kTokensAClaim);
  shares.in_order = true;
  return shares;
}

PullPlan plan_pulls(const Plan& plan, uint32_t ranks, uint32_t pullers, AcceleratorKind kind) {
  PullPlan pulls{.pullers = pullers, .rings = plan.combine, .ranks_a_step = 0};
  if (kind == AcceleratorKind::gpu) {
    // More blocks with too few stages each do not help: 48 with two took 827 us (4 H200).
    const auto at_once =
        static_cast<uint32_t>(kPulledAtOnceGpu / std::max(remote_share(ranks), 0.1) /
                              (plan.combine_groups * plan.combine.stage_bytes));
    pulls.pullers = std::min(pullers, std::max(at_once / kStagesWhilePulling, 1u));
    pulls.rings.stages =
        std::min(pulls.rings.stages, std::max(at_once / pulls.pullers, kStagesWhilePulling));
  }
  pulls.ranks_a_step = std::min({ranks, kWarpLanes, pulls.rings.stages});
  return pulls;
}

uint32_t choose_pullers(uint32_t ranks, uint32_t blocks, PreparedRow prepared) {
  const double pulls = 1 / kPulledBytes, prepares = preparing(ranks, prepared);
  const auto pullers = static_cast<uint32_t>(std::lround(blocks * pulls / (pulls + prepares)));
  return std::clamp(pullers, 1u, std::min(blocks - 1, 2 * kBlocksForLinks));
}

bool prepares_beside(uint32_t ranks, uint32_t blocks, PreparedRow prepared, AcceleratorKind kind) {
  const bool copied = prepared.results == 0;
  if (blocks < 2 || (copied && ranks == 1)) return false;
  if (kind != AcceleratorKind::gpu) return true;
  const double links = remote_share(ranks) / kLinkBytes, pulls = 1 / kPulledBytes;
  const double prepares = preparing(ranks, prepared);
  const double beside = (pulls + prepares * (copied ? 1 : kSummedBeside)) / blocks;
  const double before = copied ? 1 / kCopiedBytes : prepares / blocks;
  return std::max(beside, links) < before + std::max(pulls / blocks, links);
}

double results_a_row(uint32_t ranks, uint32_t topk) {
  return topk / (ranks * (1 - std::pow(1 - 1.0 / ranks, topk)));
}

uint32_t choose_senders(uint32_t ranks, uint32_t blocks) {
  if (ranks == 1) return 0;
  // Twice as many as the links need: a block that signals each row's arrival while other blocks
  // store to memory sends half as fast (10 senders: 58 MB in 250 us, H200).
  return std::min(2 * kBlocksForLinks, std::max(blocks / 2, 1u));
}

}  // namespace tokenyard::throughput
