/// Dispatch for throughput: sends each row to every rank that holds one of its experts, directly to
/// its final place, in one launch.
///
///     source rank, block b                            destination rank
///     counts its tokens per rank and expert
///     ---- ready words, counts (to every rank) --->   every block reads the counts of all blocks
///                                                     of all ranks and computes every slot by
///                                                     prefix sums
///     loads each row once into shared memory
///     ---- rows, ids, weights, source tokens ----->   in their final places
///     ---- finished ------------------------------>   block 0 waits for all blocks of all ranks
///
/// A block stores no row before it has every rank's ready words, which prove that the destination's
/// buffer is free, and every count, which fixes the row's slot. The release of `finished` covers
/// all that the block has stored.
///
/// Rows are ordered by source rank, then source token, whatever the timing and the number of
/// blocks. Remote bytes per destination rank of a token: its row once, plus topk * 8 + 4 of
/// metadata. One latency passes before rows move, and one after.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/common/expert_partition.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"
#include "expert_parallel/throughput/kernels/readiness.hpp"
#include "expert_parallel/throughput/kernels/received_layout.hpp"
#include "expert_parallel/throughput/kernels/record.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"
#include "expert_parallel/throughput/kernels/route_table.hpp"

namespace tokenyard::throughput {

/// Division of a rank's tokens. Block b counts and owns the b-th range of tokens_a_block tokens. It
/// moves the first tokens_kept of them; blocks claim the rest of all ranges dynamically, since the
/// links serve blocks very unequally (one may finish in half the time of another).
struct Shares {
  uint32_t tokens_a_block;
  uint32_t tokens_a_step;  ///< tokens per step of a warp, one lane per choice: 32 / topk, or 1
  uint32_t tokens_kept;
  uint32_t claims;  ///< claims in all, of kTokensAClaim tokens each
  bool in_order;    ///< no tokens are kept; claims take the rank's tokens in order
};
inline constexpr uint32_t kTokensAClaim = 2;

/// The first warps of a block move rows, each through its own ring: issuing the copies of a row
/// takes one warp 0.65 us (H200), in which a multiprocessor could store two rows of 14 KB. The
/// other warps count tokens, then do everything else.
inline constexpr uint32_t kMoversMax = 8;
inline constexpr uint32_t kDispatchStagesMax = 64;  ///< over all movers

/// Words of shared memory for the routes of the first tokens that a block keeps, which move first.
inline constexpr uint32_t kHeldRows = 512;

struct DispatchParams {
  CallParams call;            ///< kind dispatch_again: the route is reused and nothing is counted
  const std::byte* x;         ///< [tokens, row_bytes]
  const std::byte* scales;    ///< [tokens, scale words], or null
  const void* topk_idx;       ///< [tokens, topk] int64 or int32
  const float* topk_weights;  ///< [tokens, topk]; null: every weight is 1
  bool idx_is_int64;
  uint32_t tokens, topk, row_bytes;
  uint32_t experts, local_experts;  ///< local: those of this rank
  ExpertPartition partition;        ///< division of experts among ranks
  Shares shares;
  uint32_t movers;
  uint32_t tokens_held;  ///< tokens per block with routes in shared memory (kHeldRows); 0 on a
                         ///< reused route
  StagePlan plan;        ///< per mover
  RouteTable table;      ///< written here, or reused
  int32_t* route;        ///< [tokens, ranks], part of `table`: row on that rank, or -1
  bool awaited;          ///< this rank's host waits for the counts record, which also reports a
                         ///< refusal
  CountsRecord* record;
  Readiness readiness;

  /// Returns the layout on a rank with places for `rows` rows.
  TOKENYARD_HOST_DEVICE ReceivedLayout received(uint32_t rows) const {
    return {.rows = rows,
            .row_bytes = row_bytes,
            .topk = call.kind == CallKind::dispatch_again ? 0 : topk,
            .scale_words = call.scales.words(),
            .scale_order = call.scales.order()};
  }
};

/// Metadata and scales that accompany rows.
enum class Place : uint32_t { ids, weights, sources, scales };
inline constexpr uint32_t kPlaces = 4;

/// Where each rank wants them: offsets from the base of its arena in kOffsetUnit, in shared memory.
struct Places {
  uint32_t* words;  ///< [kPlaces][ranks]
  uint32_t ranks;

  TOKENYARD_HOST_DEVICE uint32_t& of(Place place, uint32_t rank) const {
    return words[static_cast<uint32_t>(place) * ranks + rank];
  }
};

/// The block's shared memory after the kernel's Shared struct.
struct DispatchTail {
  uint32_t warps, ranks, experts, local_experts;
  uint32_t stages_bytes;
  std::byte* base = nullptr;

  TOKENYARD_HOST_DEVICE static DispatchTail of(const DispatchParams& params, uint32_t warps) {
    return {.warps = warps,
            .ranks = params.call.ranks,
            .experts = params.experts,
            .local_experts = params.local_experts,
            .stages_bytes = params.movers * params.plan.stages * params.plan.stage_bytes};
  }
  TOKENYARD_HOST_DEVICE std::byte* stages() const { return base; }
  /// [warps][ranks]: rows of the warp's tokens per rank.
  TOKENYARD_HOST_DEVICE uint32_t* warp_rows(uint32_t warp) const { return words() + warp * ranks; }
  /// [warps][ranks]: rows of earlier warps' tokens per rank.
  TOKENYARD_HOST_DEVICE uint32_t* earlier_rows(uint32_t warp) const {
    return warp_rows(warps) + warp * ranks;
  }
  /// [ranks]: rows of the block's tokens per rank.
  TOKENYARD_HOST_DEVICE uint32_t* block_rows() const { return earlier_rows(warps); }
  /// [experts]: the block's tokens per expert.
  TOKENYARD_HOST_DEVICE uint32_t* expert_tokens() const { return block_rows() + ranks; }
  /// [local experts]: tokens from all blocks of all ranks (block 0).
  TOKENYARD_HOST_DEVICE uint32_t* expert_sums() const { return expert_tokens() + experts; }
  /// [ranks]: first row of this block on each rank.
  TOKENYARD_HOST_DEVICE uint32_t* first_rows() const { return expert_sums() + local_experts; }
  /// [ranks]: rows received from each rank.
  TOKENYARD_HOST_DEVICE uint32_t* rows_from() const { return first_rows() + ranks; }
  /// [ranks]: rows that each rank receives in all.
  TOKENYARD_HOST_DEVICE uint32_t* rows_on() const { return rows_from() + ranks; }
  TOKENYARD_HOST_DEVICE Places places() const { return {rows_on() + ranks, ranks}; }
  TOKENYARD_HOST_DEVICE Waits waits() const { return {rows_on() + (1 + kPlaces) * ranks, ranks}; }
  TOKENYARD_HOST_DEVICE ReadyWords ready_words() const {
    return {waits().words + kWaitWords * ranks, ranks};
  }
  /// [tokens_held][ranks]: as RouteTable::rows. Follows the words that start as zero.
  TOKENYARD_HOST_DEVICE int32_t* held_rows() const {
    return reinterpret_cast<int32_t*>(words() + word_count());
  }
  /// From warp_rows to the ready words: words that start as zero.
  TOKENYARD_HOST_DEVICE uint32_t* words() const {
    return reinterpret_cast<uint32_t*>(base + stages_bytes);
  }
  TOKENYARD_HOST_DEVICE uint32_t word_count() const {
    return 2 * warps * ranks + experts + local_experts +
           (4 + kPlaces + kWaitWords + kReadyWords) * ranks;
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return stages_bytes + (word_count() + kHeldRows) * 4;
  }
};

inline constexpr uint32_t kDispatchThreadsMax = 512;
inline constexpr uint32_t kDispatchWarpsMin = 2;  ///< one that moves rows, one for everything else

TOKENYARD_DECLARE_KERNEL(dispatch_kernel, DispatchParams);

}  // namespace tokenyard::throughput
