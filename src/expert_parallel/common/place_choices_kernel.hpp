/// The kernel that replaces expert ids by places. See place_choices.hpp.
#pragma once

#include <algorithm>

#include "device/dependent_launch.hpp"
#include "device/device.hpp"
#include "expert_parallel/common/place_choices.hpp"

namespace tokenyard {

/// A place for a choice, or what takes its place.
struct PlacedChoice {
  int64_t id = -1;
  bool lost = false;
};

/// Relaxed: kernels that mask ranks do not run beside this one.
TOKENYARD_DEVICE bool takes_part(const PlaceParams& params, uint32_t place) {
  if (params.failed == nullptr) return true;
  const uint32_t rank = params.table.partition.rank_of(place);
  if (params.left_out != nullptr && load_cached(params.left_out + rank) != 0) return false;
  return load<Order::relaxed, Scope::gpu>(params.failed + rank) == 0;
}

TOKENYARD_DEVICE PlacedChoice placed_choice(const PlaceParams& params, uint32_t token, int64_t id) {
  const PlacementTable& table = params.table;
  if (static_cast<uint64_t>(id) >= table.experts)
    return {.id = misplaced(id, table.experts, table.places_there_are)};
  const uint32_t first = load_cached(table.first + id), end = load_cached(table.first + id + 1);
  uint32_t usable = 0;
  for (uint32_t i = first; i < end; ++i)
    usable += takes_part(params, load_cached(table.places + i)) ? 1 : 0;
  if (usable == 0) return {.lost = true};
  uint32_t turn = (token + params.rank) % usable;
  uint32_t place = 0;
  for (uint32_t i = first; i < end; ++i) {
    place = load_cached(table.places + i);
    if (takes_part(params, place) && turn-- == 0) break;
  }
  return {.id = place};
}

/// Replaces this lane's choice; returns whether it is lost.
TOKENYARD_DEVICE bool place_choice(const PlaceParams& params, uint32_t token, uint32_t choice) {
  const size_t at = size_t{token} * params.topk + choice;
  const int64_t id = params.idx_is_int64
                         ? load_cached(static_cast<const int64_t*>(params.topk_idx) + at)
                         : load_cached(static_cast<const int32_t*>(params.topk_idx) + at);
  const PlacedChoice choice_placed = placed_choice(params, token, id);
  params.placed[at] = choice_placed.id;
  return choice_placed.lost;
}

/// Places the choices of a warp's tokens, as many at a time as its lanes hold; returns how many are
/// lost. Called by all lanes.
TOKENYARD_DEVICE uint32_t place_tokens(const PlaceParams& params) {
  const uint32_t topk = params.topk, at_once = std::max(kWarpLanes / topk, 1u);
  const uint32_t which = at_once == 1 ? 0 : warp::lane() / topk;
  const uint32_t own = warp::lane() - which * topk;
  const uint32_t of_token =
      topk < kWarpLanes ? ((1u << topk) - 1) << (which < at_once ? which * topk : 0) : ~0u;
  uint32_t lost = 0;
  const uint32_t first = (block::index() * warp::count() + warp::index()) * at_once;
  const uint32_t stride = grid::blocks() * warp::count() * at_once;
  for (uint32_t base = first; base < params.tokens; base += stride) {
    const uint32_t token = base + which;
    const bool present = which < at_once && token < params.tokens;
    uint32_t lost_of_token = 0;
    for (uint32_t choice = own; choice - own < topk; choice += kWarpLanes) {
      const bool gone = present && choice < topk && place_choice(params, token, choice);
      const uint32_t all_gone = warp::ballot(gone);
      lost_of_token += population(all_gone & of_token);
      lost += population(all_gone);
    }
    if (present && own == 0) params.lost[token] = static_cast<int32_t>(lost_of_token);
  }
  return lost;
}

/// Adds the block's lost choices to the object's total; the last block shows it to the host. Called
/// by the whole block.
TOKENYARD_DEVICE void count_lost(const LostChoices& counted, uint32_t lost_in_warp) {
  // Relaxed: the block's arrival releases it.
  if (warp::elect() && lost_in_warp != 0)
    add<Order::relaxed, Scope::gpu>(counted.total, lost_in_warp);
  block::sync();
  if (thread::index() != 0) return;
  // acq_rel: the last block sees what all have added.
  if (fetch_add<Order::acq_rel, Scope::gpu>(counted.arrived, 1) + 1 != grid::blocks()) return;
  store<Order::relaxed, Scope::gpu>(counted.arrived, 0);
  // Relaxed: the host reads it much later.
  store<Order::relaxed, Scope::sys>(counted.shown, load<Order::relaxed, Scope::gpu>(counted.total));
}

TOKENYARD_DEVICE void place_choices(const PlaceParams& params) {
  grid::wait_for_previous();
  grid::let_next_start();
  count_lost(params.counted, place_tokens(params));
}

TOKENYARD_DEFINE_KERNEL(place_choices_kernel, place_choices, PlaceParams, NoShared,
                        kPlaceThreadsMax)

}  // namespace tokenyard
