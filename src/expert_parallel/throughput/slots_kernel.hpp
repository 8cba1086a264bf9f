/// Where every row goes: slots from prefix sums over ranks, blocks, warps and tokens.
#pragma once

#include "expert_parallel/throughput/counts_kernel.hpp"

namespace tokenyard::throughput {

/// By one warp: the first row of its tokens on each rank.
DEVICE void find_first_rows(const Dispatch& call) {
  uint32_t* const next_rows = call.tail.next_rows(warp::index());
  for (uint32_t rank = warp::lane(); rank < call.tail.ranks; rank += kWarpLanes) {
    uint32_t row = call.tail.first_rows()[rank];
    for (uint32_t warp = 1; warp < warp::index(); ++warp) row += call.tail.warp_rows(warp)[rank];
    next_rows[rank] = row;
  }
  warp::sync();
}

/// By one warp, 1 and up: the routes of its tokens.
DEVICE void assign_slots(const Dispatch& call) {
  find_first_rows(call);
  const DispatchParams& params = call.params;
  const PickLane lane = PickLane::mine(params);
  uint32_t* const next_rows = call.tail.next_rows(warp::index());
  for_each_step(params, lane, tokens_of_warp(params, warp::index()), [&](const Pick& pick) {
    const bool valid = pick.valid(params.experts);
    const uint32_t rank = valid ? static_cast<uint32_t>(pick.id) / params.local_experts : 0;
    const bool leads = leads_to_rank(params, lane, valid, rank);
    // Of the step's tokens that go to the same rank, lower lanes hold the earlier ones.
    const uint32_t same = leaders_to(params.call.ranks, leads, rank);
    if (leads)
      params.route[size_t{pick.token} * params.call.ranks + rank] =
          static_cast<int32_t>(next_rows[rank] + population(same & lanes_below()));
    warp::sync();
    if (leads && (same & lanes_below()) == 0) next_rows[rank] += population(same);
    warp::sync();
  });
}

/// By one thread of each block that has met after assign_slots. Release: other blocks, which claim
/// our tokens, read the routes.
DEVICE void announce_routes(const Dispatch& call) {
  add<Order::release, Scope::gpu>(&call.params.call.workspace->routes_known[call.epoch & 1], 1);
}

}  // namespace tokenyard::throughput
