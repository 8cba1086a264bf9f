/// From experts as a model numbers them to the places that hold them: every pick of a token becomes
/// one of the places where its expert lives. No other rank takes part.
///
/// An expert with several places is a hot one: tokens take them in turn, by their index and rank,
/// so the choice is the same from run to run and spreads evenly. All picks of a token choose alike,
/// so an expert that stands twice in a token is still found.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"

namespace tokenyard::throughput {

/// On the device, alike on all ranks.
struct PlacementTable {
  const uint32_t* first;   ///< [experts + 1] of each expert's places in `places`
  const uint32_t* places;  ///< grouped by expert
  uint32_t experts;        ///< as the model numbers them
  uint32_t places_there_are;
};

struct PlaceParams {
  uint32_t rank, tokens, topk;
  const void* topk_idx;  ///< [tokens, topk] int64 or int32
  bool idx_is_int64;
  PlacementTable table;
  int64_t* placed;  ///< [tokens, topk]
};

/// What becomes of an id that no expert has: out of range for every dispatch, and it can be read
/// back.
HOST_DEVICE int64_t misplaced(int64_t id, uint32_t places) {
  return id < 0 ? id : id + places;
}

inline constexpr uint32_t kPlaceThreadsMax = 512;

DECLARE_KERNEL(place_choices_kernel, PlaceParams);

}  // namespace tokenyard::throughput
