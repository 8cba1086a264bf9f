/// Dispatch for low latency: one copy of a token a destination rank, spread there over the rows of
/// its experts.
///
///     sending blocks                                   receiving blocks
///     ---- ids of all tokens ------------------->      who sends what: a bitmap of expert, source
///     ---- their weights, if given ------------->      and token; a verdict on every source
///     cast, ---- rows, with their scales ------->      slots from counts of bits; each piece goes
///                                                      to its experts' rows, its place is emptied
///
/// Rows of an expert lie packed, by source rank, then source token, whatever the timing. Remote
/// bytes a row and rank: hidden and 16 for every 512 channels in FP8, 2 * hidden in BF16; beside
/// them 16 to 32 bytes of ids a token and rank, and 8 of a weight a pick. One latency in all;
/// nothing here waits for weights.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"
#include "expert_parallel/low_latency/kernels/divisor.hpp"
#include "expert_parallel/low_latency/kernels/expert_homes.hpp"
#include "expert_parallel/low_latency/kernels/row_layout.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kDispatchThreadsMax = 1024;
/// Data warps, and one at least for the ids.
inline constexpr uint32_t kDispatchWarpsMin = 2;

/// Rows that a source has for an expert: where they begin among the expert's rows, and how many.
struct RowRange {
  int32_t begin, count;
};

/// The first pick of a dispatch whose id is no expert, in memory that the host sees. A dispatch
/// finds the first one bit by bit, so what it has told may change until it has ended. The host has
/// read a record of version v if it still finds version v afterwards: that of v + 1 lies beside it.
struct RemoteError {
  struct Record {
    uint32_t epoch;   ///< of the dispatch
    uint32_t choice;  ///< token * topk + pick
    int64_t id;
  };
  uint32_t version;  ///< of the last record, which is stored first; 0: there is none
  uint32_t heard;    ///< the last version that the host has read, which it stores
  Record records[2];

  HOST_DEVICE static uint32_t place(uint32_t version) { return version & 1; }
};

/// What a dispatch leaves on its rank. slots = ranks * tokens_max.
struct DispatchOut {
  std::byte* x;         ///< [local experts, slots, row bytes]
  uint32_t* scales;     ///< [local experts, scale words, slots]
  int32_t* source;      ///< [local experts, slots] token of the source rank
  RowRange* ranges;     ///< [local experts, ranks]
  int32_t* counts;      ///< [local experts] rows
  int32_t* row_slot;    ///< [ranks, tokens_max, topk] local expert * slots + slot, or -1
  int32_t* choices;     ///< [tokens_max, topk] experts of this rank's own tokens, or -1
  int32_t* rows_total;  ///< [local experts] counts are added here, if not null
  uint64_t* waited;     ///< [ranks] cycles until a source's ids were in are added, if not null
  float* weights;   ///< [tokens_max, topk] of this rank's own tokens, if this dispatch tells them
  uint32_t* epoch;  ///< of this dispatch: that of the batch
};

/// A receiving block's shared memory after the kernel's Shared struct.
struct DispatchTail {
  uint32_t ranks, local_experts, topk, words;
  uint32_t rows_a_block;  ///< (source, token) pairs that a block spreads
  bool counts;            ///< an expert's words are many: its rows of each source are counted once
  std::byte* base = nullptr;

  /// Bit t of a source's words: the expert gets that source's token t.
  HOST_DEVICE uint32_t* bits(uint32_t expert, uint32_t source) const {
    return bitmap() + (expert * ranks + source) * words;
  }
  HOST_DEVICE uint32_t* bitmap() const { return reinterpret_cast<uint32_t*>(base); }
  HOST_DEVICE uint32_t bitmap_words() const { return local_experts * ranks * words; }
  /// An expert's rows of each source.
  HOST_DEVICE uint32_t* rows(uint32_t expert) const {
    return bitmap() + bitmap_words() + expert * ranks;
  }
  /// [rows_a_block][topk] where the block's own rows go: local expert * slots + slot, or -1.
  HOST_DEVICE int32_t* slots(uint32_t row) const {
    return reinterpret_cast<int32_t*>(rows(local_experts)) + row * topk;
  }
  /// [rows_a_block][topk] local experts of the block's own rows.
  HOST_DEVICE uint16_t* ids(uint32_t row) const {
    return reinterpret_cast<uint16_t*>(slots(rows_a_block)) + row * topk;
  }
  /// Of any shape; more than a block can have do not fit in 32 bits.
  uint64_t bytes() const {
    const uint64_t tables = uint64_t{local_experts} * ranks * (words + 1) * 4;
    return tables + uint64_t{rows_a_block} * topk * (4 + 2);
  }
};

/// By what a dispatch divides.
struct DispatchDivisors {
  Divisor ranks, slots, topk;
  ExpertHomes homes;
  Divisor receive_blocks;
  Divisor ids_a_source;  ///< words that tell of a rank's tokens
  Divisor jobs_a_row;    ///< of a receiving block
  Divisor send_team;     ///< warps of a sending block that move one token
};

struct DispatchParams {
  CallParams call;
  const std::byte* x;  ///< [tokens, hidden] BF16, or FP8 with `scales`
  const void* scales;  ///< [tokens, groups] fp32, or [tokens, scale words] packed; null: cast here
  const void* topk_idx;
  bool idx_is_int64;
  uint32_t tokens, tokens_max, topk;
  uint32_t experts, local_experts;  ///< in all, and of this rank
  RowLayout row;
  DispatchOut out;
  RemoteError* remote_error;
  // By divide().
  DispatchTail tail;
  DispatchDivisors by;
  uint32_t data_blocks;  ///< of those that send the first, which move tokens
  uint32_t publish_first,
      publish_blocks;   ///< of those that send some tell ids; `data_blocks` may be all
  uint32_t send_teams;  ///< of a sending block, a token each: while one's loads come, another sends
  uint32_t ids_shift;   ///< threads of a receiving block that share a word of ids, as a power of 2
  // Last, since few blocks ask for them: what all ask for lies together in the constant cache.
  const float* weights;  ///< [tokens, topk]; null: combine tells them
  uint32_t batch;        ///< this rank's number for the batch, 0 or 1

  /// On the host, when all the rest is known: what the blocks, of so many warps, divide among them.
  /// `words_summed`: of an expert's words, as many as are counted anew for each slot.
  void divide(uint32_t blocks_that_receive, uint32_t warps, uint32_t words_summed) {
    const uint32_t team = std::min(row.units(), warps - 1);  // One at least is for the ids.
    const uint32_t blocks = blocks_that_receive != 0 ? blocks_that_receive : 1;
    by = {.ranks = Divisor::of(call.ranks),
          .slots = Divisor::of(slots()),
          .topk = Divisor::of(topk),
          .homes = ExpertHomes::of(experts, call.ranks),
          .receive_blocks = Divisor::of(blocks),
          .ids_a_source = Divisor::of(tokens_max * packed_ids_of(topk)),
          .jobs_a_row = Divisor::of(row.units() + 1),
          .send_team = Divisor::of(team)};
    send_teams = (warps - 1) / team;
    constexpr uint32_t kSharesMax = 3;
    static_assert(1u << kSharesMax == PackedIds::kIds);
    const uint32_t published = call.ranks * by.ids_a_source.divisor;  // Words of ids.
    for (ids_shift = kSharesMax; ids_shift != 0; --ids_shift)
      if (published << ids_shift <= warps * kWarpLanes) break;
    tail = tail_of(blocks, words_summed);
  }
  DispatchTail tail_of(uint32_t blocks_that_receive, uint32_t words_summed) const {
    return {.ranks = call.ranks,
            .local_experts = local_experts,
            .topk = topk,
            .words = words(),
            .rows_a_block = (slots() + blocks_that_receive - 1) / blocks_that_receive,
            .counts = call.ranks * words() > words_summed};
  }

  HOST_DEVICE uint32_t slots() const { return call.ranks * tokens_max; }
  /// Words of a source's bits, an expert.
  HOST_DEVICE uint32_t words() const { return (tokens_max + 31) / 32; }
};

DECLARE_KERNEL(dispatch_kernel, DispatchParams);

}  // namespace tokenyard::low_latency
