/// Combine for throughput, by pull: every rank fetches the rows that its tokens became, from
/// wherever they went, and sums them.
///
///     owner of the tokens, a block                       ranks that the tokens went to
///     awaits hellos            <------------------------ say where their rows (y) lie
///     some warps fetch rows    <------ rows ------------ (only read)
///     the others add them to the biases, in the order of the ranks, in fp32, and round once
///     ---- finished ----------------------------------> y may be overwritten, whether the last
///                                                        rows have been summed or not
///
/// A group of warps pulls most of its share of the tokens, then claims what is left of everybody's,
/// for the links serve blocks unequally to the end. Who sums learns from the ring whose rows come.
///
/// Remote bytes: a row for each rank that a token went to. Pull is bound by the rate of loads from
/// peers, which eight multiprocessors reach (H200), and reads each row once; push needs staging and
/// twice the multiprocessors.
///
/// Results that peers cannot read, because they lie in an ordinary tensor, or that are yet to be
/// summed to one a row, come later than the hello that says so: the last blocks of the grid prepare
/// rows in the arena meanwhile, in the order in which they are pulled, and tell each token's owner:
///
///     ---- prepared (a word a row) --------------------> its row may be read
///
/// So the links are busy while this rank's own memory is. Nobody waits in a circle: who prepares
/// waits for nobody's rows.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"
#include "expert_parallel/throughput/kernels/results.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"

namespace tokenyard::throughput {

/// A block's warps work in groups, each with tokens and a ring of its own: the first warp of a
/// group fetches rows, the others sum. (To fetch a token's rows takes one warp 0.8 us, and what
/// every summing warp does for a token beside adding should be done by few: H200.) One warp more
/// brings weights home and, in a block that prepares rows, tells of them first.
inline constexpr uint32_t kCombineGroupsMax = 4;
inline constexpr uint32_t kCombineStagesMax = 64;  ///< of all groups
inline constexpr uint32_t kCombineThreadsMax = 544;
inline constexpr uint32_t kCombineWarpsMax = kCombineThreadsMax / 32;

/// 16-byte pieces of a segment that a summing lane holds in registers: bounds segments.
inline constexpr uint32_t kPiecesALane = 4;

inline constexpr uint32_t kBiases = 2;

/// What is done about results that come later.
struct Preparation {
  uint32_t blocks;  ///< the last of the grid; 0: rows lie where peers read them
  ResultsParams results;
  const int32_t* tokens;      ///< [rows] received: of their sources
  const uint32_t* rows_from;  ///< [ranks] received
  /// Rows of this rank's own tokens, too; otherwise those are read where `results` has them from.
  bool of_own_tokens;

  /// Whether rows are copied as they are, and not summed.
  HOST_DEVICE bool copies() const { return results.slots == nullptr; }
};

/// Tokens that a group pulls, beyond its share, at once.
inline constexpr uint32_t kTokensAPull = 2;

struct CombineParams {
  CallParams call;  ///< rows_at and beside_at: of this rank's y and weights
  Preparation preparation;
  const int32_t* route;              ///< [tokens, ranks] row on that rank, or -1
  const uint32_t* order;             ///< [tokens, ranks] in which ranks are added, or null: theirs
  const std::byte* biases[kBiases];  ///< [tokens, row_bytes] each, or null: sums begin with them
  std::byte* out;                    ///< [tokens, row_bytes]
  float* out_weights;                ///< [tokens, topk] if the call is with weights
  uint32_t tokens, topk, row_bytes;
  uint32_t ranks_a_step;  ///< ranks fetched from at once: at most 32, and at most the stages
  uint32_t groups;
  uint32_t tokens_kept;  ///< of each group that pulls; the rest is claimed
  StagePlan plan;        ///< of each group that pulls

  /// Of a group's rings, those that pull and those that prepare, the longer one.
  HOST_DEVICE uint32_t stages_most() const {
    const uint32_t preparing = preparation.blocks == 0 ? 0 : preparation.results.plan.stages;
    return plan.stages > preparing ? plan.stages : preparing;
  }
};

/// The block's shared memory after the kernel's Shared struct.
struct CombineTail {
  uint32_t ranks, stages_bytes;
  std::byte* base = nullptr;

  HOST_DEVICE static CombineTail of(const CombineParams& params) {
    return {.ranks = params.call.ranks,
            .stages_bytes = params.groups * params.stages_most() * params.plan.stage_bytes};
  }
  HOST_DEVICE std::byte* stages() const { return base; }
  HOST_DEVICE Waits waits() const {
    return {reinterpret_cast<uint32_t*>(base + stages_bytes), ranks};
  }
  HOST_DEVICE ReadyWords ready_words() const { return {waits().words + kWaitWords * ranks, ranks}; }
  /// [ranks + 1] of a block that prepares: the first row received from each rank, and their end.
  HOST_DEVICE uint32_t* first_rows() const { return ready_words().words + kReadyWords * ranks; }
  HOST_DEVICE uint32_t bytes() const {
    return stages_bytes + ((kWaitWords + kReadyWords + 1) * ranks + 1) * 4;
  }
};

DECLARE_KERNEL(combine_kernel, CombineParams);

}  // namespace tokenyard::throughput
