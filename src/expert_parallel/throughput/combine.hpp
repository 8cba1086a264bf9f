/// Combine for throughput, by pull: every rank fetches the rows that its tokens became, from
/// wherever they went, and sums them.
///
///     owner of the tokens, a block                       ranks that the tokens went to
///     awaits hellos            <------------------------ say where their rows (y) lie
///     some warps fetch rows    <------ rows ------------ (only read)
///     the others add them to the biases, in the order of the ranks, in fp32, and round once
///     ---- finished ----------------------------------> y may be overwritten
///
/// Remote bytes: a row for each rank that a token went to. Pull is bound by the rate of loads from
/// peers, which eight multiprocessors reach (H200), and reads each row once; push needs staging and
/// twice the multiprocessors.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/throughput/call.hpp"
#include "expert_parallel/throughput/ring.hpp"

namespace tokenyard::throughput {

/// A block's warps work in groups, each with tokens and a ring of its own: the first warp of a
/// group fetches rows, the others sum. (To fetch a token's rows takes one warp 0.8 us, and what
/// every summing warp does for a token beside adding should be done by few: H200.) One warp more
/// brings weights home.
inline constexpr uint32_t kCombineGroupsMax = 4;
inline constexpr uint32_t kCombineStagesMax = 64;  ///< of all groups
inline constexpr uint32_t kCombineThreadsMax = 544;

/// 16-byte pieces of a segment that a summing lane holds in registers: bounds segments.
inline constexpr uint32_t kPiecesALane = 4;

inline constexpr uint32_t kBiases = 2;

struct CombineParams {
  CallParams call;                   ///< rows_at and weights_at: of this rank's y and weights
  const int32_t* route;              ///< [tokens, ranks] row on that rank, or -1
  const uint32_t* order;             ///< [tokens, ranks] in which ranks are added, or null: theirs
  const std::byte* biases[kBiases];  ///< [tokens, row_bytes] each, or null: sums begin with them
  std::byte* out;                    ///< [tokens, row_bytes]
  float* out_weights;                ///< [tokens, topk] if the call is with weights
  uint32_t tokens, topk, row_bytes;
  uint32_t ranks_a_step;  ///< ranks fetched from at once: at most 32, and at most the stages
  uint32_t groups;
  StagePlan plan;  ///< of each group
};

/// The block's shared memory after the kernel's Shared struct.
struct CombineTail {
  uint32_t ranks, stages_bytes;
  std::byte* base = nullptr;

  HOST_DEVICE static CombineTail of(const CombineParams& params) {
    return {.ranks = params.call.ranks,
            .stages_bytes = params.groups * params.plan.stages * params.plan.stage_bytes};
  }
  HOST_DEVICE std::byte* stages() const { return base; }
  HOST_DEVICE Waits waits() const {
    return {reinterpret_cast<uint32_t*>(base + stages_bytes), ranks};
  }
  HOST_DEVICE Hellos hellos() const { return {waits().words + kWaitWords * ranks, ranks}; }
  HOST_DEVICE uint32_t bytes() const {
    return stages_bytes + (kWaitWords + kHelloWords) * ranks * 4;
  }
};

DECLARE_KERNEL(combine_kernel, CombineParams);

}  // namespace tokenyard::throughput
