#include "expert_parallel/low_latency/plan.hpp"

#include <algorithm>

#include "expert_parallel/low_latency/logfmt.hpp"

namespace tokenyard::low_latency {

namespace {

// Best on 4 H200s: a dispatch sends with 16 of 132 blocks, since receivers have the more to do; a
// combine halves them.
constexpr uint32_t kDispatchSendersMax = 16, kDispatchSendersShare = 4;
constexpr uint32_t kCombineSendersShare = 2;
// 14 warps cast a token of 7168, the others carry ids; 28 hold a row of sums, a chunk each.
constexpr uint32_t kDispatchWarpsGpu = 32, kCombineWarpsGpu = 28;
// On the host few, so that even small tests give a warp several chunks.
constexpr uint32_t kDispatchWarpsHost = 3, kCombineWarpsHost = 2, kBlocksHost = 3;
constexpr uint32_t kPollsALookGpu = 64;  // Some 50 us of polling L2.
static_assert(kDispatchWarpsGpu * kWarpLanes <= kDispatchThreadsMax);
static_assert(kCombineWarpsGpu * kWarpLanes <= kCombineThreadsMax);
static_assert(kDispatchWarpsHost >= kDispatchWarpsMin);

Split split(Part part, uint32_t blocks, uint32_t senders) {
  switch (part) {
    case Part::send:
      return {blocks, blocks};
    case Part::receive:
      return {blocks, 0};
    case Part::both:
      break;
  }
  return {blocks, std::clamp(senders, 1u, blocks - 1)};
}

uint32_t round_up_to_line(uint32_t pieces) {
  return (pieces + 7) / 8 * 8;
}

}  // namespace

Split Plan::dispatch(Part part, uint32_t blocks) const {
  return split(part, blocks, std::min(kDispatchSendersMax, blocks / kDispatchSendersShare));
}

Split Plan::combine(Part part, uint32_t blocks) const {
  return split(part, blocks, blocks / kCombineSendersShare);
}

Plan make_plan(const LowLatencyOptions& options, AcceleratorKind kind, const Capacity& capacity) {
  const bool gpu = kind == AcceleratorKind::gpu;
  const uint32_t all = gpu ? std::min(capacity.multiprocessors, kBlocksMax) : kBlocksHost;
  return {.kind = kind,
          .blocks_max = options.sms != 0 ? options.sms : all,
          .dispatch_warps = gpu ? kDispatchWarpsGpu : kDispatchWarpsHost,
          .combine_warps = gpu ? kCombineWarpsGpu : kCombineWarpsHost,
          .polls_a_look = gpu ? kPollsALookGpu : 1};
}

WindowLayout window_layout(const LowLatencyOptions& options, uint32_t ranks) {
  const uint32_t fp8 = row_layout(options, LowLatencyRows::fp8).staged_pieces();
  const uint32_t chunks = (options.hidden + 255) / 256;
  const uint32_t bf16 = row_layout(options, LowLatencyRows::bf16).staged_pieces();
  return WindowLayout({.ranks = ranks,
                       .tokens_max = options.tokens_max,
                       .topk = options.topk,
                       .row_pieces = options.bf16_rows ? std::max(fp8, bf16) : fp8,
                       .partial_pieces = std::max(round_up_to_line(options.hidden / 8),
                                                  round_up_to_line(chunks * kLogFmtPiecesAChunk))});
}

uint32_t timeout_units(std::chrono::nanoseconds timeout) {
  constexpr int64_t kMost = UINT32_MAX / (kTimesLate + 1);
  return static_cast<uint32_t>(std::clamp<int64_t>(timeout.count() / kTimeUnitNs, 1, kMost));
}

}  // namespace tokenyard::low_latency
