/// Combine for throughput, by pull: every rank fetches the rows of its tokens from the ranks that
/// they went to, and sums them.
///
///     owner of the tokens, a block                       ranks that the tokens went to
///     waits for ready words    <------------------------ announce where their rows (y) are
///     some warps fetch rows    <------ rows ------------ (only read)
///     the others add them to the biases, in rank order, in fp32, and round once
///     ---- finished ----------------------------------> y may be overwritten, even before the last
///                                                        rows have been summed
///
/// A source's ready word proves that its rows are readable, unless it says that they become
/// readable later; `finished` proves that every load of the block has landed. A group of warps
/// pulls most of its share of the tokens, then claims what is left of all shares, since the links
/// serve blocks unequally to the end. Summing warps learn from the ring which rows it holds.
///
/// Remote bytes: one row per rank that a token went to. Pull is bound by the rate of loads from
/// peers, which eight multiprocessors reach (H200), and reads each row once; push needs staging and
/// twice the multiprocessors.
///
/// Some results become readable only after the ready words that say so: those in an ordinary
/// tensor, which peers cannot read, and those that must first be summed to one per row. The last
/// blocks of the grid prepare these rows in the arena, in the order in which they are pulled, and
/// signal each token's owner:
///
///     ---- prepared (one word per row) ----------------> that row may be read
///
/// This keeps links and local memory busy together. The waits have no cycle: a block that prepares
/// rows waits for no rows.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"
#include "expert_parallel/throughput/kernels/results.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"

namespace tokenyard::throughput {

/// A block's warps work in groups, each with its own tokens and ring: the first warp of a group
/// fetches rows, the others sum. (H200: fetching a token's rows takes one warp 0.8 us, and few
/// warps should repeat the work that each summing warp has per token besides adding.) One more warp
/// fetches the weights and, in a block that prepares rows, first signals those.
inline constexpr uint32_t kCombineGroupsMax = 4;
inline constexpr uint32_t kCombineStagesMax = 64;  ///< over all groups
inline constexpr uint32_t kCombineThreadsMax = 544;
inline constexpr uint32_t kCombineWarpsMax = kCombineThreadsMax / 32;

/// 16-byte pieces of a segment that a summing lane holds in registers; bounds the size of segments.
inline constexpr uint32_t kPiecesALane = 4;

inline constexpr uint32_t kBiases = 2;

/// Preparation of results that become readable during the call.
struct Preparation {
  uint32_t blocks;  ///< last blocks of the grid that prepare; 0: peers can already read the rows
  ResultsParams results;
  const int32_t* tokens;      ///< [received rows] source token
  const uint32_t* rows_from;  ///< [ranks] rows received
  /// Whether this rank's own rows are prepared too; else they are read where `results` reads them.
  bool of_own_tokens;

  /// Returns whether rows are copied unchanged instead of summed.
  TOKENYARD_HOST_DEVICE bool copies() const { return results.slots == nullptr; }
};

/// Tokens per claim of a group beyond its share.
inline constexpr uint32_t kTokensAPull = 2;

struct CombineParams {
  CallParams call;  ///< rows_at, beside_at: this rank's y and weights
  Preparation preparation;
  const int32_t* route;              ///< [tokens, ranks]: row on that rank, or -1
  const uint32_t* order;             ///< [tokens, ranks]: order in which ranks are added; null:
                                     ///< rank order
  const std::byte* biases[kBiases];  ///< [tokens, row_bytes] each, or null; sums start with them
  std::byte* out;                    ///< [tokens, row_bytes]
  float* out_weights;                ///< [tokens, topk], if the call includes weights
  uint32_t tokens, topk, row_bytes;
  uint32_t ranks_a_step;  ///< ranks fetched from at once: at most 32, at most `stages`
  uint32_t groups;
  uint32_t tokens_kept;  ///< per pulling group; the rest is claimed
  StagePlan plan;        ///< per pulling group

  /// Returns the stages of the longer ring, of pulling or preparing groups.
  TOKENYARD_HOST_DEVICE uint32_t stages_most() const {
    const uint32_t preparing = preparation.blocks == 0 ? 0 : preparation.results.plan.stages;
    return plan.stages > preparing ? plan.stages : preparing;
  }
};

/// The block's shared memory after the kernel's Shared struct.
struct CombineTail {
  uint32_t ranks, stages_bytes;
  std::byte* base = nullptr;

  TOKENYARD_HOST_DEVICE static CombineTail of(const CombineParams& params) {
    return {.ranks = params.call.ranks,
            .stages_bytes = params.groups * params.stages_most() * params.plan.stage_bytes};
  }
  TOKENYARD_HOST_DEVICE std::byte* stages() const { return base; }
  TOKENYARD_HOST_DEVICE Waits waits() const {
    return {reinterpret_cast<uint32_t*>(base + stages_bytes), ranks};
  }
  TOKENYARD_HOST_DEVICE ReadyWords ready_words() const {
    return {waits().words + kWaitWords * ranks, ranks};
  }
  /// [ranks + 1], in blocks that prepare: first row received from each rank, and the end.
  TOKENYARD_HOST_DEVICE uint32_t* first_rows() const {
    return ready_words().words + kReadyWords * ranks;
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return stages_bytes + ((kWaitWords + kReadyWords + 1) * ranks + 1) * 4;
  }
};

TOKENYARD_DECLARE_KERNEL(combine_kernel, CombineParams);

}  // namespace tokenyard::throughput
