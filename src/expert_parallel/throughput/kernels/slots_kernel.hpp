/// Computes the final row of each token on each rank by prefix sums over ranks, blocks, warps and
/// tokens.
#pragma once

#include "expert_parallel/throughput/kernels/counts_kernel.hpp"

namespace tokenyard::throughput {

/// Adds up the rows of earlier warps. Called by each warp that moves no rows, after all have
/// counted.
TOKENYARD_DEVICE void find_earlier_rows(const Dispatch& call) {
  for (uint32_t rank = warp::lane(); rank < call.tail.ranks; rank += kWarpLanes) {
    uint32_t rows = 0;
    for (uint32_t warp = call.first_other(); warp < warp::index(); ++warp)
      rows += call.tail.warp_rows(warp)[rank];
    call.tail.earlier_rows(warp::index())[rank] = rows;
  }
}

/// Turns what count_tokens left in the routes of the warp's tokens, held or not, into rows on their
/// ranks. Called by each warp that moves no rows, after the block has synchronized since
/// find_earlier_rows.
TOKENYARD_DEVICE void assign_slots(const Dispatch& call, TokenRange tokens) {
  const uint32_t ranks = call.tail.ranks;
  const uint32_t* const first_rows = call.tail.first_rows();
  const uint32_t* const earlier_rows = call.tail.earlier_rows(warp::index());
  int32_t* const route = call.params.route + size_t{tokens.begin} * ranks;
  for (uint32_t i = warp::lane(); i < (tokens.end - tokens.begin) * ranks; i += kWarpLanes) {
    const uint32_t rank = i % ranks;
    int32_t* const held = call.held_row(tokens.begin + i / ranks, rank);
    const int32_t place = held != nullptr ? *held : route[i];
    const int32_t row =
        place < 0 ? -1 : place + static_cast<int32_t>(first_rows[rank] + earlier_rows[rank]);
    if (held != nullptr) *held = row;
    if (held != nullptr || row >= 0) route[i] = row;
  }
}

/// Announces that this block's routes are final. Called by one thread per block, after the block
/// has synchronized since assign_slots. Release: orders the routes before the count, for other
/// blocks that claim our tokens.
TOKENYARD_DEVICE void announce_routes(const Dispatch& call) {
  add<Order::release, Scope::gpu>(&call.params.call.workspace->routes_known[call.epoch & 1], 1);
}

}  // namespace tokenyard::throughput
