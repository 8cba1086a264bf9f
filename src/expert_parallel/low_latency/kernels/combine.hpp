/// Combine for low latency: every rank weighs and sums its experts' rows of a token and sends one
/// row of sums to the token's owner, who adds the ranks' rows up. Where a rank has one row of a
/// token there is nothing to sum: it sends the row, and the owner weighs it.
///
///     sending blocks, for the others' tokens           receiving blocks, for this rank's tokens
///     ---- this rank's weights, unless the              (to the other ranks' sending blocks)
///          dispatch has told them -------------->
///     await a token's weights, sum, round;
///     of a row that is alone, nothing of that
///     ---- a row of sums, or the row itself ----->      own experts' rows straight from y, in
///                                                       fp32; every rank's sums; weighs those
///                                                       that are one row, adds, rounds;
///                                                       the block votes: a row counts whole or is
///                                                       left out of a second sum
///
/// Two roundings to BF16 a contribution from another rank, but one of the result for this rank's
/// own and, without logarithms, for a rank with one pick, whose row comes as it is. The order of
/// sums is that of the token's picks: the same bits for every grid and timing. Remote bytes: 2 *
/// hidden a token and rank it went to, 8 * topk of weights. Two latencies, or one if weights were
/// told in the dispatch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"
#include "expert_parallel/low_latency/kernels/divisor.hpp"
#include "expert_parallel/low_latency/kernels/expert_homes.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kCombineThreadsMax = 480, kLogFmtThreadsMax = 896;
/// Of few tokens so many blocks share what is sent of each: one is bound by its instructions.
inline constexpr uint32_t kSumPartsMax = 4;
/// Chunks of a row, 256 channels each, that a warp has in hand at once: a span.
inline constexpr uint32_t kBf16SpanChunks = 2, kLogFmtSpanChunks = 1;

/// By what a combine divides.
struct CombineDivisors {
  Divisor others;  ///< ranks but for this one
  Divisor topk;
  ExpertHomes homes;
  Divisor streams;
};

struct CombineParams {
  CallParams call;
  const std::byte* y;       ///< [local experts, slots, hidden] BF16
  const float* weights;     ///< [tokens, topk], given here or copied by the dispatch
  const int32_t* row_slot;  ///< [ranks, tokens_max, topk], of the dispatch
  const int32_t* choices;   ///< [tokens_max, topk], of the dispatch
  std::byte* out;           ///< [tokens, hidden] BF16
  int32_t* lost;            ///< [tokens] picks of masked ranks, which the sum lacks; may be null
  uint64_t* waited;         ///< [ranks] cycles waited for a rank's sums are added; may be null
  uint32_t tokens, tokens_max, topk, experts;
  uint32_t pieces;  ///< of a row: hidden / 8
  // By divide().
  CombineDivisors by;
  /// Of the sending blocks, `streams` share the others' tokens, or `parts` times as many, a part of
  /// each token's spans each; the rest tells weights alone. A warp without a span reads no weights:
  /// one that reads them and sends nothing would be waited for by nobody, who could then tell the
  /// next. `parts` are no more than spans.
  uint32_t streams, parts;
  uint32_t spans;  ///< of a row
  // Last, since receiving blocks do not ask for them.
  bool published;              ///< the weights, to the others already, by the dispatch
  uint32_t batch;              ///< this rank's number for the batch, 0 or 1
  const uint32_t* dispatched;  ///< the epoch of the batch's dispatch
  int32_t only_in_other;       ///< see SumsLayout

  /// On the host, when all the rest is known.
  void divide(uint32_t span_chunks) {
    const uint32_t others = call.ranks > 1 ? call.ranks - 1 : 1, tokens = others * tokens_max;
    const uint32_t blocks = call.send_blocks != 0 ? call.send_blocks : 1;
    const uint32_t turns = (tokens + blocks - 1) / blocks;
    streams = (tokens + turns - 1) / turns;  // No more than it takes for as many turns.
    const uint32_t spare = blocks > others ? blocks - others : 1;
    spans = (chunks() + span_chunks - 1) / span_chunks;
    parts = std::clamp(spare / streams, 1u, std::min(spans, kSumPartsMax));
    call.staging_blocks = streams * parts;
    by = {.others = Divisor::of(others),
          .topk = Divisor::of(topk),
          .homes = ExpertHomes::of(experts, call.ranks),
          .streams = Divisor::of(streams)};
  }

  HOST_DEVICE uint32_t chunks() const { return (pieces + 31) / 32; }
};

DECLARE_KERNEL(combine_kernel, CombineParams);
/// The same with rows of sums as LogFMT codes.
DECLARE_KERNEL(combine_logfmt_kernel, CombineParams);

}  // namespace tokenyard::low_latency
