/// Received rows, copied to each of their experts on this rank. No other rank takes part.
///
/// Every block finds the places of its own rows without asking another one: an expert's rows come
/// in the order in which they were received, so a row's place is the expert's offset and the number
/// of rows before it that have this expert too, which the block counts anew. That is a few
/// microseconds of reading ids from cache, against a barrier of the whole grid. Then some warps
/// copy rows, each loaded once and stored to all its places, and the others what lies beside them.
#pragma once

#include <cstdint>

#include "device/bulk.hpp"
#include "device/kernel.hpp"
#include "device/wait.hpp"
#include "expert_parallel/expert_major/expert_rows_layout.hpp"
#include "expert_parallel/throughput/ring.hpp"

namespace tokenyard::expert_major {

struct ExpandParams {
  uint32_t rows, topk;                ///< received
  const std::byte* x;                 ///< [rows, row_bytes]
  const uint32_t* scales;             ///< [rows, scale_words], or null
  const int32_t* ids;                 ///< [rows, topk] local experts, -1 for none
  const float* weights;               ///< [rows, topk]
  const uint32_t* tokens_per_expert;  ///< [local experts]
  uint32_t alignment;
  std::byte* to;  ///< ExpertRowsLayout
  ExpertRowsLayout layout;
  uint32_t movers;             ///< warps of a block that copy rows, each through a ring of its own
  throughput::StagePlan plan;  ///< of each mover
  Patience patience;           ///< of the dispatch that the rows came with
};

inline constexpr uint32_t kExpandStagesMax = 64;  ///< of all movers
inline constexpr uint32_t kZeroBytes = 4096;      ///< padding is copied from them

struct ExpandShared {
  Completion full[kExpandStagesMax];  ///< [movers][stages]
};

/// The block's shared memory after the kernel's Shared struct. All but the stages begins as zero.
struct ExpandTail {
  uint32_t warps, local_experts, stages_bytes;
  std::byte* base = nullptr;

  HOST_DEVICE std::byte* stages() const { return base; }
  /// [kZeroBytes]: remain zero.
  HOST_DEVICE std::byte* zeros() const { return base + stages_bytes; }
  /// [local experts + 1]: each expert's first row.
  HOST_DEVICE uint32_t* offsets() const {
    return reinterpret_cast<uint32_t*>(zeros() + kZeroBytes);
  }
  /// [local experts]: rows of earlier blocks.
  HOST_DEVICE uint32_t* before() const { return offsets() + local_experts + 1; }
  /// [warps][local experts]: rows of a warp; later its next place.
  HOST_DEVICE uint32_t* of_warp(uint32_t warp) const {
    return before() + local_experts + size_t{warp} * local_experts;
  }
  HOST_DEVICE uint32_t* zeroed_words() const { return reinterpret_cast<uint32_t*>(zeros()); }
  HOST_DEVICE uint32_t zeroed_word_count() const {
    return kZeroBytes / 4 + (2 + warps) * local_experts + 1;
  }
  HOST_DEVICE uint32_t bytes() const { return stages_bytes + zeroed_word_count() * 4; }
};

inline constexpr uint32_t kExpandThreadsMax = 512;

/// What a kernel of this folder found wrong, after the phases of throughput.
inline constexpr uint32_t kTooFewPlaces = 100;

DECLARE_KERNEL(expand_rows_kernel, ExpandParams);

}  // namespace tokenyard::expert_major
