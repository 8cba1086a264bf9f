/// Replaces the model's expert ids with places that hold the experts: each choice of a token
/// becomes one place of its expert on a rank that takes part. Involves no other rank.
///
/// Tokens take the places of an expert that has several in turn, by token index and rank, so the
/// result is reproducible and evenly spread. All choices of a token map an expert to the same
/// place, so duplicate experts in a token are still detected. A choice whose expert has no place
/// on such a rank is lost: it becomes -1 and is counted.
///
/// A kernel of its own, before the dispatch: its blocks and warps look at the same choice at
/// different times, and a rank may be masked in between. Nothing that this kernel reads can change.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/common/expert_partition.hpp"

namespace tokenyard {

/// On the device, identical on all ranks.
struct PlacementTable {
  const uint32_t* first;   ///< [experts + 1]: index in `places` of each expert's first place
  const uint32_t* places;  ///< grouped by expert, in the order of places
  uint32_t experts;        ///< number of experts in the model's numbering
  uint32_t places_there_are;
  ExpertPartition partition;  ///< of the places
};

/// Lost choices of all calls of an object. One kernel at a time adds.
struct LostChoices {
  uint64_t* total;    ///< on the device
  uint32_t* arrived;  ///< on the device: blocks of this call that have added theirs
  uint64_t* shown;    ///< the total after the last call, in memory that the host reads
};

struct PlaceParams {
  uint32_t rank, tokens, topk;
  const void* topk_idx;  ///< [tokens, topk] int64 or int32
  bool idx_is_int64;
  PlacementTable table;
  const uint32_t* failed;  ///< [ranks] 0 for a rank that takes part; null: all of them do
  /// [ranks] other than 0 for a rank that takes no part in this call; null: none.
  const uint32_t* left_out;
  int64_t* placed;  ///< [tokens, topk]
  int32_t* lost;    ///< [tokens] choices of each that are lost
  LostChoices counted;
};

/// Replacements of ids that are no experts but numbers of places: out of range for every dispatch,
/// and reversible. Other such ids stay as they are.
inline constexpr uint64_t kMisplaced = uint64_t{1} << 63;
TOKENYARD_HOST_DEVICE int64_t misplaced(int64_t id, uint32_t experts, uint32_t places) {
  const bool hidden = id >= experts && id < places;
  return static_cast<int64_t>(static_cast<uint64_t>(id) | (hidden ? kMisplaced : 0));
}
/// Returns the id that `misplaced` was given.
TOKENYARD_HOST_DEVICE int64_t not_misplaced(int64_t id, uint32_t experts, uint32_t places) {
  const uint64_t number = static_cast<uint64_t>(id) & ~kMisplaced;
  return id < 0 && number >= experts && number < places ? static_cast<int64_t>(number) : id;
}

inline constexpr uint32_t kPlaceThreadsMax = 512;

TOKENYARD_DECLARE_KERNEL(place_choices_kernel, PlaceParams);

}  // namespace tokenyard
