/// Replaces the model's expert ids with places that hold the experts: each choice of a token
/// becomes one place of its expert. Involves no other rank.
///
/// An expert with several places is a hot one. Tokens take its places in turn, by token index and
/// rank, so the result is reproducible and evenly spread. All choices of a token map an expert to
/// the same place, so duplicate experts in a token are still detected.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"

namespace tokenyard::throughput {

/// On the device, identical on all ranks.
struct PlacementTable {
  const uint32_t* first;   ///< [experts + 1]: index in `places` of each expert's first place
  const uint32_t* places;  ///< grouped by expert
  uint32_t experts;        ///< number of experts in the model's numbering
  uint32_t places_there_are;
};

struct PlaceParams {
  uint32_t rank, tokens, topk;
  const void* topk_idx;  ///< [tokens, topk] int64 or int32
  bool idx_is_int64;
  PlacementTable table;
  int64_t* placed;  ///< [tokens, topk]
};

/// Returns the replacement of an id that is no expert: out of range for every dispatch, and
/// reversible.
TOKENYARD_HOST_DEVICE int64_t misplaced(int64_t id, uint32_t places) {
  return id < 0 ? id : id + places;
}

inline constexpr uint32_t kPlaceThreadsMax = 512;

TOKENYARD_DECLARE_KERNEL(place_choices_kernel, PlaceParams);

}  // namespace tokenyard::throughput
