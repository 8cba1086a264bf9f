/// Parameters of grouping received rows by expert: where the rows and their metadata are, where
/// they go, and a block's state on the way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/by_expert/expert_rows_layout.hpp"

namespace tokenyard::expert_major {

struct Grouping {
  uint32_t topk, alignment;
  bool clear_padding;      ///< otherwise padding rows are left as they are
  const uint32_t* scales;  ///< [rows, scale_words] as received, or null
  const int32_t* ids;      ///< [rows, topk] local experts; -1: none
  const float* weights;    ///< [rows, topk]
  std::byte* to;           ///< ExpertRowsLayout
  ExpertRowsLayout layout;

  template <class T>
  TOKENYARD_HOST_DEVICE T* at(size_t offset) const {
    return reinterpret_cast<T*>(to + offset);
  }
};

/// Error phase of the kernels in this folder, after the phases of throughput.
inline constexpr uint32_t kTooFewPlaces = 100;

inline constexpr uint32_t kZeroBytes = 4096;  ///< source of the copies that clear padding

/// In the block's shared memory, aligned to 128 bytes: words that start as zero.
struct GroupTail {
  uint32_t placers;  ///< warps that assign rows their places
  uint32_t ranks;    ///< 0 if rows are ready whichever rank sent them
  uint32_t local_experts;
  std::byte* base = nullptr;

  /// [kZeroBytes]: remain zero.
  TOKENYARD_HOST_DEVICE std::byte* zeros() const { return base; }
  /// [local experts + 1]: first row per expert.
  TOKENYARD_HOST_DEVICE uint32_t* offsets() const {
    return reinterpret_cast<uint32_t*>(zeros() + kZeroBytes);
  }
  /// [local experts]: rows per expert.
  TOKENYARD_HOST_DEVICE uint32_t* tokens() const { return offsets() + local_experts + 1; }
  /// [local experts]: rows of earlier blocks.
  TOKENYARD_HOST_DEVICE uint32_t* before() const { return tokens() + local_experts; }
  /// [placers][local experts]: rows of the warp; later its next place.
  TOKENYARD_HOST_DEVICE uint32_t* of_warp(uint32_t placer) const {
    return before() + local_experts + size_t{placer} * local_experts;
  }
  /// [2]: begin and end of the block's rows.
  TOKENYARD_HOST_DEVICE uint32_t* range() const { return of_warp(placers); }
  /// Nonzero once a wait has failed: for counts; for metadata.
  TOKENYARD_HOST_DEVICE uint32_t& counts_lost() const { return range()[2]; }
  TOKENYARD_HOST_DEVICE uint32_t& metadata_lost() const { return range()[3]; }
  /// [ranks]: first row of each source.
  TOKENYARD_HOST_DEVICE uint32_t* first_from() const { return range() + 4; }
  TOKENYARD_HOST_DEVICE uint32_t* words() const { return reinterpret_cast<uint32_t*>(base); }
  TOKENYARD_HOST_DEVICE uint32_t word_count() const {
    return kZeroBytes / 4 + (3 + placers) * local_experts + 5 + ranks;
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const { return word_count() * 4; }
};

}  // namespace tokenyard::expert_major
