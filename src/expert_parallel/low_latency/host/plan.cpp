#include "expert_parallel/low_latency/host/plan.hpp"

#include <algorithm>

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/low_latency/kernels/sums_layout.hpp"

namespace tokenyard::low_latency {

namespace {

// Best on 4 H200s: a dispatch sends with 16 of 132 blocks, since receivers have more to do. Between
// two GPUs a receiver has half as much to do, and 32 blocks, which have 64 tokens in hand, are
// better. If there are that many, further blocks publish ids, one per kTokensAPublishBlock tokens.
constexpr uint32_t kDataBlocksGpu = 16, kDataBlocksOfTwoGpus = 32;
constexpr uint32_t kPublishBlocksOfTwoGpus = 4, kTokensAPublishBlock = 32;
constexpr uint32_t kDataBlocksHost = 1;
constexpr uint32_t kSumWarpsThatFillLinks = 280;  // Each with two chunks: see combine_senders.
// A send-only combine should leave multiprocessors to other kernels, and waits for weights.
constexpr uint32_t kSumBlocksAloneGpu = 64;
constexpr uint32_t kReceiversAloneGpu = 72;  // In a dispatch: see Plan::receivers_alone.
// Among more than two ranks the links bound a dispatch's sends: 128 tokens of 7168 took four H200s
// 11.3 us on 130 blocks and 11.6 on 32, each with two tokens in hand. Between two ranks, 130 blocks
// take 4 us.
constexpr uint32_t kDataBlocksAloneGpu = 32, kTokensADataBlockAlone = 4;
// 14 warps cast a token of 7168, so a block has two in hand, and its other warps carry ids. 14
// warps hold a partial sum, two chunks each, and one more looks at ranks; in LogFMT, 28 hold one.
constexpr uint32_t kDispatchWarpsGpu = 32, kCombineWarpsGpu = 15, kLogFmtWarpsGpu = 28;
// Few on the host, so that even small tests give a warp several chunks.
constexpr uint32_t kDispatchWarpsHost = 3, kCombineWarpsHost = 2, kBlocksHost = 3;
constexpr uint32_t kSpeaker = 1;  // The last block of a grid: see most_of_dispatch.
constexpr Split kAnySplit{.blocks = 2 * kBlocksMax, .send_blocks = kBlocksMax};
constexpr uint32_t kPollsPerCheckGpu = 64;                      // Some 50 us of polling L2.
constexpr uint32_t kWordsSummedGpu = 64, kWordsSummedHost = 4;  // Some tests on hosts have more.
static_assert(kDispatchWarpsGpu * kWarpLanes <= kDispatchThreadsMax);
static_assert(kCombineWarpsGpu * kWarpLanes <= kCombineThreadsMax);
static_assert(kLogFmtWarpsGpu * kWarpLanes <= kLogFmtThreadsMax);
static_assert(kDispatchWarpsHost >= kDispatchWarpsMin);

/// Returns the most sending blocks of a dispatch: a quarter, or between two ranks 36 of 132.
uint32_t dispatch_senders(uint32_t blocks, uint32_t others) {
  return others <= 1 ? blocks * 2 / 7 : blocks / 4;
}

/// Returns the sending blocks of a combine: half, unless a receiving block has several tokens to
/// finish. Between two ranks it then sums as many rows per token as a sending block and takes
/// longer, so three of seven send (two H100s, 128 tokens on 8 multiprocessors: 61.0 us, down from
/// 71.4). Among more ranks, no more send than `fill` the links, unless nearly twice as many can,
/// which fill them better (four H200s, 128 tokens: 20.6 us with 20 of 48 to 80 blocks, 22.1 with
/// 23). Encoding LogFMT takes senders longer still, so half send.
uint32_t combine_senders(uint32_t blocks, uint32_t tokens, uint32_t others, uint32_t fill,
                         bool logfmt) {
  const uint32_t half = blocks / 2;
  if (tokens <= 2 * blocks || logfmt) return half;
  if (others <= 1) return blocks * 3 / 7;
  return half * 5 < fill * 9 ? std::min(half, fill) : half;
}

Split split(Part part, uint32_t blocks, uint32_t senders, Split most) {
  const uint32_t most_receivers = most.blocks - most.send_blocks;
  switch (part) {
    case Part::send:
      blocks = std::min(blocks, most.send_blocks);
      return {blocks, blocks};
    case Part::receive:
      return {std::min(blocks, most_receivers), 0};
    case Part::both:
      break;
  }
  senders = std::clamp(senders, 1u, blocks - 1);
  const uint32_t receivers = std::min(blocks - senders, most_receivers);
  senders = std::min(senders, most.send_blocks);
  return {senders + receivers, senders};
}

/// Returns the most blocks that find work. Each sending block has at least one token, or publishes
/// ids, or one rank's weights; each receiving block has at least one row. In small calls all
/// further blocks are in the way (on 4 H200s a dispatch of one token took 6.0 us on 132
/// multiprocessors and 5.6 on 48), except the last, which speaks for the rank: that takes it a
/// microsecond, and the only receiver of a combine was late by as much.
Split most_of_dispatch(const LowLatencyOptions& options, uint32_t ranks) {
  const uint32_t senders = std::max(options.tokens_max + 2, ranks);
  return {senders + ranks * options.tokens_max + 1, senders};
}
Split most_of_combine(const LowLatencyOptions& options, uint32_t ranks) {
  // Others wait for weights, so these have blocks of their own, and not the last block of the grid.
  const uint32_t senders = (ranks - 1) * (kSumPartsMax * options.tokens_max + 1) + 1;
  return {senders + options.tokens_max + 1, senders};
}

uint32_t quotient_up(uint32_t dividend, uint32_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

uint32_t chunks_of(uint32_t hidden) {
  constexpr uint32_t kChunkChannels = 256;
  return quotient_up(hidden, kChunkChannels);
}

/// Returns how many blocks fill the links: the fewer channels a row has, the fewer warps of a block
/// sum it.
uint32_t sum_blocks_that_fill_links(uint32_t hidden) {
  const uint32_t spans = quotient_up(chunks_of(hidden), kBf16SpanChunks);
  return quotient_up(kSumWarpsThatFillLinks, std::min(spans, kCombineWarpsGpu));
}

uint32_t round_up(uint32_t value, uint32_t unit) {
  return quotient_up(value, unit) * unit;
}

}  // namespace

Split Plan::dispatch(Part part, uint32_t blocks, uint32_t tokens) const {
  Split most = dispatch_most;
  if (part == Part::send)
    most.send_blocks =
        std::min(most.send_blocks, data_blocks_alone(tokens) + publish_blocks_max + kSpeaker);
  return split(part, blocks,
               std::min(data_blocks_max + publish_blocks_max, dispatch_senders(blocks, others)),
               most);
}

/// Separates the blocks that publish ids from those that move tokens, if there are enough. The last
/// block of the grid speaks for the rank, so in a send-only call it publishes no ids if another
/// block can.
SendRoles Plan::send_roles(Split split, uint32_t tokens) const {
  const uint32_t senders = split.send_blocks;
  const bool alone = split.blocks == senders;
  uint32_t data =
      std::min(senders, std::max(alone ? data_blocks_alone(tokens) : shaping(tokens), 1u));
  // Of two sending blocks on a host, one moves tokens whatever publish_blocks_max is.
  if (senders > data_blocks_max)
    data = std::min(data, senders - (alone ? 1 : std::min(publish_blocks_max, senders - 1)));
  if (data == senders) return {data, 0, senders};
  const bool last_speaks = alone && senders - data > 1;
  return {data, data, senders - data - (last_speaks ? 1 : 0)};
}

Split Plan::combine(Part part, uint32_t blocks, uint32_t tokens, bool logfmt) const {
  Split most = combine_most;
  if (part == Part::send)
    most.send_blocks = std::min(most.send_blocks, sum_blocks_alone_max + others + kSpeaker);
  if (part == Part::receive)
    most.blocks = std::min(most.blocks, most.send_blocks + shaping(tokens) + kSpeaker);
  return split(part, blocks,
               combine_senders(blocks, shaping(tokens), others, sum_blocks_that_fill, logfmt),
               most);
}

uint64_t Plan::dispatch_shared_bytes(Part part, uint32_t blocks) const {
  constexpr uint32_t kTailAlignment = 128;  // See block::shared_tail.
  const uint64_t shared = round_up(dispatch_kernel.entry.shared_bytes, kTailAlignment);
  if (!receives(part)) return shared + DispatchTail::rank_bytes(others + 1);
  const Split split = dispatch(part, blocks, tokens_max);
  DispatchParams params{};
  params.call.ranks = others + 1;
  params.tokens_max = tokens_max;
  params.topk = topk;
  params.local_experts = local_experts;
  return shared + params.tail_of(split.blocks - split.send_blocks, words_summed).bytes();
}

uint32_t Plan::dispatch_blocks_min(Part part) const {
  const uint32_t most = blocks_there_are(multiprocessors);
  for (uint32_t blocks = kBlocksMin; blocks <= most; ++blocks)
    if (dispatch_shared_bytes(part, blocks) <= shared_bytes) return blocks;
  return 0;
}

/// A receive-only dispatch should leave multiprocessors to other kernels, so if there are more rows
/// than these blocks, each spreads two at once if it has the warps: between two H100s 64 tokens of
/// 7168 took 6.27 us on 129 blocks, 6.36 on 72.
uint32_t Plan::receivers_alone(uint32_t blocks, uint32_t units) const {
  constexpr uint32_t kRowsAtOnce = 2;
  if (kind != AcceleratorKind::gpu || kRowsAtOnce * (units + 1) > dispatch_warps_max) return blocks;
  const uint32_t rows = (others + 1) * tokens_max;
  return std::min(blocks,
                  std::max({receivers_min, kReceiversAloneGpu, quotient_up(rows, kRowsAtOnce)}));
}

uint32_t Plan::dispatch_warps(const DispatchParams& params, Split split) const {
  if (kind != AcceleratorKind::gpu) return dispatch_warps_max;
  const uint32_t receivers = split.blocks - split.send_blocks;
  const uint32_t ids = params.tokens_max * packed_ids_of(params.topk);
  uint32_t warps = kDispatchWarpsMin;
  constexpr uint32_t kIdsAWarp = kWarpLanes / PackedIds::kIds;  // One lane per choice.
  if (split.send_blocks != 0) {
    const SendRoles roles = send_roles(split, params.tokens);
    const uint32_t tokens = quotient_up(shaping(params.tokens), roles.data_blocks);
    const uint32_t of_data = tokens * params.row.units();
    const uint32_t of_ids = quotient_up(ids, kIdsAWarp * roles.publish_blocks);
    warps = roles.apart() ? std::max(of_data + 1, of_ids) : of_data + of_ids;
  }
  if (receivers != 0)
    warps = std::max({warps, quotient_up(params.call.ranks * ids, kWarpLanes),
                      quotient_up(params.slots(), receivers) * (params.row.units() + 1)});
  return std::min(warps, dispatch_warps_max);
}

Plan make_plan(const LowLatencyOptions& options, uint32_t ranks, AcceleratorKind kind,
               const Capacity& capacity) {
  const bool gpu = kind == AcceleratorKind::gpu;
  const uint32_t all = gpu ? blocks_there_are(capacity.multiprocessors) : kBlocksHost;
  Plan plan{.kind = kind,
            .multiprocessors = capacity.multiprocessors,
            .shared_bytes = capacity.shared_bytes,
            .blocks_max = options.sms != 0 ? options.sms : all,
            .dispatch_warps_max = gpu ? kDispatchWarpsGpu : kDispatchWarpsHost,
            .combine_warps = gpu ? kCombineWarpsGpu : kCombineWarpsHost,
            .logfmt_warps = gpu ? kLogFmtWarpsGpu : kCombineWarpsHost,
            .polls_per_check = gpu ? kPollsPerCheckGpu : 1,
            .words_summed = gpu ? kWordsSummedGpu : kWordsSummedHost,
            .data_blocks_max = !gpu         ? kDataBlocksHost
                               : ranks <= 2 ? kDataBlocksOfTwoGpus
                                            : kDataBlocksGpu,
            .data_blocks_alone_max =
                gpu && ranks > 2 ? std::max(kDataBlocksAloneGpu,
                                            quotient_up(options.tokens_max, kTokensADataBlockAlone))
                                 : kBlocksMax,
            .publish_blocks_max = ranks <= 2 ? std::clamp(options.tokens_max / kTokensAPublishBlock,
                                                          1u, kPublishBlocksOfTwoGpus)
                                             : 1,
            .sum_blocks_alone_max = gpu ? kSumBlocksAloneGpu : kBlocksMax,
            .sum_blocks_that_fill = gpu ? sum_blocks_that_fill_links(options.hidden) : kBlocksMax,
            .others = ranks - 1,
            .tokens_max = options.tokens_max,
            .topk = options.topk,
            .local_experts = ExpertHomes::of(places_of(options, ranks), ranks).held_at_most(),
            .one_grid = capacity.one_grid,
            // Tests on hosts have few blocks anyway, and use them all.
            .dispatch_most = gpu ? most_of_dispatch(options, ranks) : kAnySplit,
            .combine_most = gpu ? most_of_combine(options, ranks) : kAnySplit,
            .receivers_min = 0};
  plan.receivers_min = plan.dispatch_blocks_min(Part::receive);
  // On hosts the default may be too few for what each block would have to hold.
  if (options.sms == 0)
    plan.blocks_max = std::max(plan.blocks_max, plan.dispatch_blocks_min(Part::both));
  return plan;
}

WindowLayout window_layout(const LowLatencyOptions& options, uint32_t ranks) {
  const uint32_t fp8 = row_layout(options, LowLatencyRows::fp8).staged_pieces();
  const uint32_t bf16 = row_layout(options, LowLatencyRows::bf16).staged_pieces();
  return WindowLayout({.ranks = ranks,
                       .tokens_max = options.tokens_max,
                       .topk = options.topk,
                       .row_pieces = options.bf16_rows ? std::max(fp8, bf16) : fp8,
                       .partial_pieces = SumsLayout::of(options.hidden).staged_pieces()});
}

uint32_t timeout_units(std::chrono::nanoseconds timeout) {
  constexpr int64_t kMost = UINT32_MAX / (kTimesLate + 1);
  return static_cast<uint32_t>(std::clamp<int64_t>(timeout.count() / kTimeUnitNs, 1, kMost));
}

}  // namespace tokenyard::low_latency
