/// The kernel that replaces expert ids by places. See place_choices.hpp.
#pragma once

#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/place_choices.hpp"

namespace tokenyard::throughput {

TOKENYARD_DEVICE int64_t placed_id(const PlaceParams& params, uint32_t token, int64_t id) {
  const PlacementTable& table = params.table;
  if (static_cast<uint64_t>(id) >= table.experts) return misplaced(id, table.places_there_are);
  const uint32_t first = load_cached(table.first + id), end = load_cached(table.first + id + 1);
  return load_cached(table.places + first + (token + params.rank) % (end - first));
}

TOKENYARD_DEVICE void place_choices(const PlaceParams& params) {
  const size_t choices = size_t{params.tokens} * params.topk;
  const size_t stride = size_t{grid::blocks()} * block::threads();
  for (size_t i = size_t{block::index()} * block::threads() + thread::index(); i < choices;
       i += stride) {
    const int64_t id = params.idx_is_int64
                           ? load_cached(static_cast<const int64_t*>(params.topk_idx) + i)
                           : load_cached(static_cast<const int32_t*>(params.topk_idx) + i);
    params.placed[i] = placed_id(params, static_cast<uint32_t>(i / params.topk), id);
  }
}

TOKENYARD_DEFINE_KERNEL(place_choices_kernel, place_choices, PlaceParams, NoShared,
                        kPlaceThreadsMax)

}  // namespace tokenyard::throughput
