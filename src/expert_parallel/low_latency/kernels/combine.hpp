/// Combine for low latency: every rank weights and sums its experts' rows of a token and sends one
/// partial sum to the token's owner, which adds up the ranks' partial sums. A rank with a single
/// row of a token sends the row unchanged, and the owner weights it.
///
///     sending blocks, for other ranks' tokens        receiving blocks, for this rank's tokens
///     ---- this rank's weights, unless the            (to the other ranks' sending blocks)
///          dispatch has published them --------->
///     wait for a token's weights, sum, round;
///     for a single row, none of these
///     ---- a partial sum, or the row itself ---->    add own experts' rows directly from y, in
///                                                    fp32, and every rank's partial sums;
///                                                    weight single rows; round;
///                                                    the block votes: a partial sum counts
///                                                    whole or is left out of a second sum
///
/// protocol.hpp states what the words and the parity prove.
///
/// A contribution from another rank is rounded to BF16 twice. This rank's own, and (without LogFMT)
/// the single row of a rank with one choice, which travels unchanged, are rounded once, in the
/// result. Sums run in the order of the token's choices: the same bits for every grid and timing.
/// Remote bytes: 2 * hidden per token and rank that it went to, 8 * topk of weights. Two latencies,
/// or one if the dispatch published the weights.
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
/// Blocks that share the work of one token in small calls, in which one block is bound by
/// instructions.
inline constexpr uint32_t kSumPartsMax = 4;
/// Chunks of a row, 256 channels each, that a warp has in hand at once: a span.
inline constexpr uint32_t kBf16SpanChunks = 2, kLogFmtSpanChunks = 1;

/// Divisors used by a combine.
struct CombineDivisors {
  Divisor others;  ///< ranks other than this one
  Divisor topk;
  ExpertHomes homes;
  Divisor streams;
};

/// A block's shared memory behind the kernel's Shared struct: words per rank.
struct CombineTail {
  std::byte* base;
  uint32_t ranks;

  TOKENYARD_HOST_DEVICE uint32_t* open() const { return reinterpret_cast<uint32_t*>(base); }
  /// [ranks] cycles that the first thread waited.
  TOKENYARD_HOST_DEVICE uint64_t* waited() const {
    return reinterpret_cast<uint64_t*>(open() + 2 * ranks);
  }
  static constexpr uint32_t bytes(uint32_t ranks) {
    return ranks * (2 * sizeof(uint32_t) + sizeof(uint64_t));
  }
};

struct CombineParams {
  CallParams call;
  const std::byte* y;       ///< [local experts, slots, hidden] BF16
  const float* weights;     ///< [tokens, topk], given here or copied by the dispatch
  const int32_t* row_slot;  ///< [ranks, tokens_max, topk], of the dispatch
  const int32_t* choices;   ///< [tokens_max, topk], of the dispatch
  std::byte* out;           ///< [tokens, hidden] BF16
  int32_t* lost;            ///< [tokens] choices that the sum lacks; may be null
  const int32_t* unplaced;  ///< [tokens] those of them that the dispatch sent nowhere; null: none
  uint64_t* waited;         ///< [ranks] cycles waited for a rank's sums, accumulated; may be null
  uint32_t tokens, tokens_max, topk, experts;
  uint32_t pieces;  ///< per row: hidden / 8
  // Set by divide().
  CombineDivisors by;
  /// Of the sending blocks, `streams` * `parts` share other ranks' tokens: each stream takes some
  /// tokens and each of its parts some spans. The other blocks only publish weights. A warp without
  /// a span reads no weights: nobody would wait for it, so their owner could overwrite them too
  /// early. `parts` is at most `spans`.
  uint32_t streams, parts;
  uint32_t spans;  ///< per row
  // Last, since receiving blocks do not read them.
  bool published;                 ///< the dispatch has already published the weights
  uint32_t batch;                 ///< this rank's number for the batch, 0 or 1
  const uint32_t* weights_stamp;  ///< of the batch
  int32_t only_in_other;          ///< see SumsLayout

  /// Computes the fields below "Set by divide()". Called on the host once all others are set.
  void divide(uint32_t span_chunks) {
    const uint32_t others = call.ranks > 1 ? call.ranks - 1 : 1, tokens = others * tokens_max;
    const uint32_t blocks = call.send_blocks != 0 ? call.send_blocks : 1;
    const uint32_t turns = (tokens + blocks - 1) / blocks;
    streams = (tokens + turns - 1) / turns;  // No more than these turns need.
    const uint32_t spare = blocks > others ? blocks - others : 1;
    spans = (chunks() + span_chunks - 1) / span_chunks;
    parts = std::clamp(spare / streams, 1u, std::min(spans, kSumPartsMax));
    call.staging_blocks = streams * parts;
    by = {.others = Divisor::of(others),
          .topk = Divisor::of(topk),
          .homes = ExpertHomes::of(experts, call.ranks),
          .streams = Divisor::of(streams)};
  }

  TOKENYARD_HOST_DEVICE uint32_t chunks() const { return (pieces + 31) / 32; }
};

TOKENYARD_DECLARE_KERNEL(combine_kernel, CombineParams);
/// The same, with partial sums as LogFMT codes.
TOKENYARD_DECLARE_KERNEL(combine_logfmt_kernel, CombineParams);

}  // namespace tokenyard::low_latency
