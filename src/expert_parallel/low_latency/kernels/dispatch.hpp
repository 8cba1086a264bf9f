/// Dispatch for low latency: one copy of a token per destination rank, spread there over the rows
/// of its experts.
///
///     sending blocks                                receiving blocks
///     ---- ids of all tokens ------------------>    a bitmap of expert, source and token; a
///     ---- their weights, if given ------------>    verdict on every source
///     cast, ---- rows, with their scales ------>    slots from bit counts; each piece goes to
///                                                   its experts' rows, and its place is emptied
///
/// An ids word carries the epoch and row format of its dispatch; a piece of a row is its own flag;
/// a destination's `drained` proves that its buffer of this parity is empty again (protocol.hpp).
///
/// An expert's rows are packed by source rank, then source token, whatever the timing. Remote bytes
/// per row and rank: hidden + 16 per 512 channels in FP8, 2 * hidden in BF16; besides, 16 to 32
/// bytes of ids per token and rank, and 8 per choice for a weight. One latency in all; nothing here
/// waits for weights.
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
/// Data warps, and at least one for the ids.
inline constexpr uint32_t kDispatchWarpsMin = 2;

/// Rows from one source for an expert: their first index among the expert's rows, and their number.
struct RowRange {
  int32_t begin, count;
};

/// The first choice of a dispatch whose id is no expert, in memory that the host reads. The
/// dispatch may find an earlier one later, so the report may change until it has ended. The host
/// has read version v consistently if `version` is still v afterwards: version v + 1 goes to the
/// other record.
struct RemoteError {
  struct Record {
    uint32_t epoch;   ///< epoch of the dispatch
    uint32_t choice;  ///< token * topk + index of the choice
    int64_t id;
  };
  uint32_t version;  ///< version of the last record, which is stored before it; 0: none
  uint32_t heard;    ///< last version that the host has read, stored by the host
  Record records[2];

  TOKENYARD_HOST_DEVICE static uint32_t place(uint32_t version) { return version & 1; }
};

/// Results of a dispatch on its rank. slots = ranks * tokens_max.
struct DispatchOut {
  std::byte* x;         ///< [local experts, slots, row bytes]
  uint32_t* scales;     ///< [local experts, scale words, slots]
  int32_t* source;      ///< [local experts, slots] token on the source rank
  RowRange* ranges;     ///< [local experts, ranks]
  int32_t* counts;      ///< [local experts] rows
  int32_t* row_slot;    ///< [ranks, tokens_max, topk] local expert * slots + slot, or -1
  int32_t* choices;     ///< [tokens_max, topk] experts of this rank's own tokens, -1: none
  int32_t* rows_total;  ///< [local experts] counts are accumulated here; may be null
  uint64_t* waited;     ///< [ranks] cycles until a source's ids were in, accumulated; may be null
  float* weights;       ///< [tokens_max, topk] of this rank's own tokens, if this dispatch
                        ///< publishes weights
  uint32_t* weights_stamp;  ///< of the weights of this dispatch's batch
};

/// A block's shared memory. Blocks that only send have the words per rank alone.
struct DispatchTail {
  uint32_t ranks, local_experts, topk, words;
  uint32_t rows_a_block;  ///< (source, token) pairs that a block spreads
  bool counts;            ///< rows per expert and source are counted once, since an expert has many
                          ///< words
  std::byte* base = nullptr;

  // Words per rank:
  TOKENYARD_HOST_DEVICE uint32_t* open() const { return reinterpret_cast<uint32_t*>(base); }
  /// [ranks] whether this block did not receive all ids of a source.
  TOKENYARD_HOST_DEVICE uint32_t* lacks() const { return open() + ranks; }
  /// [ranks] whether a source takes no part in this dispatch.
  TOKENYARD_HOST_DEVICE uint32_t* absent() const { return open() + 2 * ranks; }
  /// [ranks] cycles until a source's ids were in.
  TOKENYARD_HOST_DEVICE uint64_t* waited() const {
    return reinterpret_cast<uint64_t*>(open() + 4 * ranks);
  }
  TOKENYARD_HOST_DEVICE static constexpr uint32_t rank_bytes(uint32_t ranks) {
    return ranks * (4 * sizeof(uint32_t) + sizeof(uint64_t));
  }

  /// Bit t of a source's words: the expert gets token t of that source.
  TOKENYARD_HOST_DEVICE uint32_t* bits(uint32_t expert, uint32_t source) const {
    return bitmap() + (expert * ranks + source) * words;
  }
  TOKENYARD_HOST_DEVICE uint32_t* bitmap() const {
    return reinterpret_cast<uint32_t*>(base + rank_bytes(ranks));
  }
  TOKENYARD_HOST_DEVICE uint32_t bitmap_words() const { return local_experts * ranks * words; }
  /// [ranks]: an expert's rows per source.
  TOKENYARD_HOST_DEVICE uint32_t* rows(uint32_t expert) const {
    return bitmap() + bitmap_words() + expert * ranks;
  }
  /// [rows_a_block][topk] destination of the block's own rows: local expert * slots + slot, or -1.
  TOKENYARD_HOST_DEVICE int32_t* slots(uint32_t row) const {
    return reinterpret_cast<int32_t*>(rows(local_experts)) + row * topk;
  }
  /// [rows_a_block][topk] local experts of the block's own rows.
  TOKENYARD_HOST_DEVICE uint16_t* ids(uint32_t row) const {
    return reinterpret_cast<uint16_t*>(slots(rows_a_block)) + row * topk;
  }
  /// 64 bits: shapes whose size overflows 32 bits fit no block.
  uint64_t bytes() const {
    const uint64_t tables = uint64_t{local_experts} * ranks * (words + 1) * 4;
    return rank_bytes(ranks) + tables + uint64_t{rows_a_block} * topk * (4 + 2);
  }
};

/// Divisors used by a dispatch.
struct DispatchDivisors {
  Divisor ranks, slots, topk;
  ExpertHomes homes;
  Divisor receive_blocks;
  Divisor ids_a_source;  ///< ids words per source
  Divisor jobs_a_row;    ///< jobs per row of a receiving block
  Divisor send_team;     ///< warps of a sending block that move one token
};

struct DispatchParams {
  CallParams call;
  const std::byte* x;  ///< [tokens, hidden] BF16, or FP8 with `scales`
  const void* scales;  ///< [tokens, groups] fp32, or [tokens, scale words] packed; null: cast here
  const void* topk_idx;
  bool idx_is_int64;
  uint32_t tokens, tokens_max, topk;
  uint32_t experts, local_experts;  ///< in all; on this rank
  RowLayout row;
  DispatchOut out;
  RemoteError* remote_error;
  // Set by divide().
  DispatchTail tail;
  DispatchDivisors by;
  uint32_t data_blocks;  ///< sending blocks that move tokens, the first ones
  uint32_t publish_first,
      publish_blocks;   ///< sending blocks that publish ids; `data_blocks` may be all sending
                        ///< blocks
  uint32_t send_teams;  ///< teams per sending block, a token each: one team sends while another's
                        ///< loads are in flight
  uint32_t ids_shift;   ///< log2 of the threads of a receiving block that share an ids word
  // Last, since few blocks read them: fields that all blocks read are together in the constant
  // cache.
  const float* weights;  ///< [tokens, topk]; null: the combine publishes them
  uint32_t batch;        ///< this rank's number for the batch, 0 or 1

  /// Computes the division of work among blocks of `warps` warps. Called on the host once all other
  /// fields are set. `words_summed`: most words per expert that are counted anew for each slot.
  void divide(uint32_t blocks_that_receive, uint32_t warps, uint32_t words_summed) {
    const uint32_t team = std::min(row.units(), warps - 1);  // At least one warp is left for the
                                                             // ids.
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

  TOKENYARD_HOST_DEVICE uint32_t slots() const { return call.ranks * tokens_max; }
  /// Words of a source's bits per expert.
  TOKENYARD_HOST_DEVICE uint32_t words() const { return (tokens_max + 31) / 32; }
};

TOKENYARD_DECLARE_KERNEL(dispatch_kernel, DispatchParams);

}  // namespace tokenyard::low_latency
