/// Dispatch for throughput: every row to each rank that holds one of its experts, straight to its
/// final place, in one launch.
///
///     source rank, block b                               destination rank
///     counts its tokens per rank and expert
///     ---- hello, counts (to every rank) ---------->     every block reads the counts of all
///                                                        blocks of all ranks: now every slot is
///     loads each row once into shared memory             known, by prefix sums
///     ---- rows, ids, weights, source tokens ------>     lie where they belong
///     ---- finished ------------------------------->     block 0 waits for all of them
///
/// Rows lie by source rank, then source token, whatever the timing and the number of blocks. Remote
/// bytes: a row once a rank that it goes to, and topk * 8 + 4 of metadata. One latency before rows
/// move, one after.
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

/// How a rank's tokens are shared out. Block b counts, and owns, the b-th range of tokens_a_block;
/// it moves the first tokens_kept of it, and the rest of all ranges is claimed by whoever has time,
/// since the links serve blocks very unequally (one ends in half the time of another).
struct Shares {
  uint32_t tokens_a_block;
  uint32_t tokens_a_step;  ///< a warp looks at these at once, a lane an expert: 32 / topk, or 1
  uint32_t tokens_kept;
  uint32_t claims;  ///< of kTokensAClaim tokens, in all
  bool in_order;    ///< nothing is kept, and claims take the rank's tokens one after the other
};
inline constexpr uint32_t kTokensAClaim = 2;

/// The first warps of a block move rows, each with a ring of its own: to issue the copies of a row
/// takes one warp 0.65 us (H200), in which a multiprocessor could store two rows of 14 KB. The
/// other warps count tokens, then do all else.
inline constexpr uint32_t kMoversMax = 8;
inline constexpr uint32_t kDispatchStagesMax = 64;  ///< of all movers

/// Rows of the first tokens that a block keeps, which are the first that move, are known to it from
/// shared memory: so many words of it.
inline constexpr uint32_t kHeldRows = 512;

struct DispatchParams {
  CallParams call;            ///< kind dispatch_again on a known route; nothing is counted then
  const std::byte* x;         ///< [tokens, row_bytes]
  const std::byte* scales;    ///< [tokens, scale words], or null
  const void* topk_idx;       ///< [tokens, topk] int64 or int32
  const float* topk_weights;  ///< [tokens, topk], or null: every weight is 1
  bool idx_is_int64;
  uint32_t tokens, topk, row_bytes;
  uint32_t experts, local_experts;  ///< local: of this rank
  ExpertPartition partition;        ///< of the experts among the ranks
  Shares shares;
  uint32_t movers;
  uint32_t tokens_held;  ///< of each block: those of kHeldRows; none on a known route
  StagePlan plan;        ///< of each mover
  RouteTable table;      ///< made, or used again
  int32_t* route;        ///< [tokens, ranks], in it: row on that rank, or -1
  bool awaited;          ///< by this rank's host, who asks the record whether the call is refused
  CountsRecord* record;
  Readiness readiness;

  /// Of a rank with places for `rows` rows.
  HOST_DEVICE ReceivedLayout received(uint32_t rows) const {
    return {.rows = rows,
            .row_bytes = row_bytes,
            .topk = call.kind == CallKind::dispatch_again ? 0 : topk,
            .scale_words = call.scales.words(),
            .scale_order = call.scales.order()};
  }
};

/// What travels beside rows.
enum class Place : uint32_t { ids, weights, sources, scales };
inline constexpr uint32_t kPlaces = 4;

/// Where each rank wants it, from the base of its arena in kOffsetUnit, in shared memory.
struct Places {
  uint32_t* words;  ///< [kPlaces][ranks]
  uint32_t ranks;

  HOST_DEVICE uint32_t& of(Place place, uint32_t rank) const {
    return words[static_cast<uint32_t>(place) * ranks + rank];
  }
};

/// The block's shared memory after the kernel's Shared struct.
struct DispatchTail {
  uint32_t warps, ranks, experts, local_experts;
  uint32_t stages_bytes;
  std::byte* base = nullptr;

  HOST_DEVICE static DispatchTail of(const DispatchParams& params, uint32_t warps) {
    return {.warps = warps,
            .ranks = params.call.ranks,
            .experts = params.experts,
            .local_experts = params.local_experts,
            .stages_bytes = params.movers * params.plan.stages * params.plan.stage_bytes};
  }
  HOST_DEVICE std::byte* stages() const { return base; }
  /// [warps][ranks]: rows of a warp's tokens for each rank.
  HOST_DEVICE uint32_t* warp_rows(uint32_t warp) const { return words() + warp * ranks; }
  /// [warps][ranks]: rows of the tokens of earlier warps for each rank.
  HOST_DEVICE uint32_t* earlier_rows(uint32_t warp) const {
    return warp_rows(warps) + warp * ranks;
  }
  /// [ranks]: rows of the block's tokens for each rank.
  HOST_DEVICE uint32_t* block_rows() const { return earlier_rows(warps); }
  /// [experts]: tokens of the block.
  HOST_DEVICE uint32_t* expert_tokens() const { return block_rows() + ranks; }
  /// [local experts]: tokens of all blocks of all ranks (block 0).
  HOST_DEVICE uint32_t* expert_sums() const { return expert_tokens() + experts; }
  /// [ranks]: the block's first row there.
  HOST_DEVICE uint32_t* first_rows() const { return expert_sums() + local_experts; }
  /// [ranks]: rows that come from there.
  HOST_DEVICE uint32_t* rows_from() const { return first_rows() + ranks; }
  /// [ranks]: rows that a rank receives in all.
  HOST_DEVICE uint32_t* rows_on() const { return rows_from() + ranks; }
  HOST_DEVICE Places places() const { return {rows_on() + ranks, ranks}; }
  HOST_DEVICE Waits waits() const { return {rows_on() + (1 + kPlaces) * ranks, ranks}; }
  HOST_DEVICE ReadyWords ready_words() const { return {waits().words + kWaitWords * ranks, ranks}; }
  /// [tokens held][ranks]: as RouteTable::rows. Beyond the words that begin as zero.
  HOST_DEVICE int32_t* held_rows() const {
    return reinterpret_cast<int32_t*>(words() + word_count());
  }
  /// From warp_rows to the hellos: words that begin as zero.
  HOST_DEVICE uint32_t* words() const { return reinterpret_cast<uint32_t*>(base + stages_bytes); }
  HOST_DEVICE uint32_t word_count() const {
    return 2 * warps * ranks + experts + local_experts +
           (4 + kPlaces + kWaitWords + kReadyWords) * ranks;
  }
  HOST_DEVICE uint32_t bytes() const { return stages_bytes + (word_count() + kHeldRows) * 4; }
};

inline constexpr uint32_t kDispatchThreadsMax = 512;
inline constexpr uint32_t kDispatchWarpsMin = 2;  ///< one that moves rows, one for all else

DECLARE_KERNEL(dispatch_kernel, DispatchParams);

}  // namespace tokenyard::throughput
