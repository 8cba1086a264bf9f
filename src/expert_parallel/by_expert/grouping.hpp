/// What it takes to group received rows by expert: where they and what travelled beside them lie,
/// where they go, and what a block remembers on the way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/by_expert/expert_rows_layout.hpp"

namespace tokenyard::expert_major {

struct Grouping {
  uint32_t topk, alignment;
  bool clear_padding;      ///< else its rows stay as they are
  const uint32_t* scales;  ///< [rows, scale_words] as received, or null
  const int32_t* ids;      ///< [rows, topk] local experts, -1 for none
  const float* weights;    ///< [rows, topk]
  std::byte* to;           ///< ExpertRowsLayout
  ExpertRowsLayout layout;

  template <class T>
  HOST_DEVICE T* at(size_t offset) const {
    return reinterpret_cast<T*>(to + offset);
  }
};

/// What a kernel of this folder found wrong, after the phases of throughput.
inline constexpr uint32_t kTooFewPlaces = 100;

inline constexpr uint32_t kZeroBytes = 4096;  ///< padding is copied from them

/// In the block's shared memory, 128-byte aligned: words that begin as zero.
struct GroupTail {
  uint32_t placers;  ///< warps that give rows their places
  uint32_t ranks;    ///< or 0 where rows lie ready, whoever has sent them
  uint32_t local_experts;
  std::byte* base = nullptr;

  /// [kZeroBytes]: remain zero.
  HOST_DEVICE std::byte* zeros() const { return base; }
  /// [local experts + 1]: each expert's first row.
  HOST_DEVICE uint32_t* offsets() const {
    return reinterpret_cast<uint32_t*>(zeros() + kZeroBytes);
  }
  /// [local experts]: rows that each has.
  HOST_DEVICE uint32_t* tokens() const { return offsets() + local_experts + 1; }
  /// [local experts]: rows of earlier blocks.
  HOST_DEVICE uint32_t* before() const { return tokens() + local_experts; }
  /// [placers][local experts]: rows of a warp; later its next place.
  HOST_DEVICE uint32_t* of_warp(uint32_t placer) const {
    return before() + local_experts + size_t{placer} * local_experts;
  }
  /// [2]: the block's rows.
  HOST_DEVICE uint32_t* range() const { return of_warp(placers); }
  /// Not 0 once a wait has failed: for counts, for what travels beside rows.
  HOST_DEVICE uint32_t& counts_lost() const { return range()[2]; }
  HOST_DEVICE uint32_t& metadata_lost() const { return range()[3]; }
  /// [ranks]: the first row of each source.
  HOST_DEVICE uint32_t* first_from() const { return range() + 4; }
  HOST_DEVICE uint32_t* words() const { return reinterpret_cast<uint32_t*>(base); }
  HOST_DEVICE uint32_t word_count() const {
    return kZeroBytes / 4 + (3 + placers) * local_experts + 5 + ranks;
  }
  HOST_DEVICE uint32_t bytes() const { return word_count() * 4; }
};

}  // namespace tokenyard::expert_major
