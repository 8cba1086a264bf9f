/// What travels beside the rows: expert ids as the receiver knows them, weights, source tokens.
#pragma once

#include "expert_parallel/throughput/counts_kernel.hpp"

namespace tokenyard::throughput {

/// The received metadata on one rank.
struct MetadataOf {
  Peer<int32_t> ids;
  Peer<float> weights;
  Peer<int32_t> sources;

  DEVICE MetadataOf(const Dispatch& call, uint32_t rank) {
    const ReceivedLayout& layout = call.params.received;
    const Peer<std::byte> begin = call.params.call.arenas.of(rank) +
                                  (static_cast<std::ptrdiff_t>(call.hellos().rows_at(rank)) -
                                   static_cast<std::ptrdiff_t>(layout.rows_at()));
    ids = (begin + static_cast<std::ptrdiff_t>(layout.ids_at())).template as<int32_t>();
    weights = (begin + static_cast<std::ptrdiff_t>(layout.weights_at())).template as<float>();
    sources = (begin + static_cast<std::ptrdiff_t>(layout.sources_at())).template as<int32_t>();
  }
};

/// By one warp, 1 and up, for the tokens whose slots it has assigned. Rank after rank, since the
/// rows of neighbouring tokens on one rank are neighbours: a warp's stores fill whole lines.
DEVICE void send_metadata(const Dispatch& call) {
  const DispatchParams& params = call.params;
  const PickLane lane = PickLane::mine(params);
  const uint32_t ranks = params.call.ranks, local_experts = params.local_experts;
  for_each_step(params, lane, tokens_of_warp(params, warp::index()), [&](const Pick& pick) {
    if (!pick.present) return;
    const bool valid = pick.valid(params.experts);
    const uint32_t id = static_cast<uint32_t>(pick.id);
    const uint32_t home = valid ? id / local_experts : ranks;
    const float weight =
        load_cached(params.topk_weights + size_t{pick.token} * params.topk + lane.pick);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const int32_t row = params.route[size_t{pick.token} * ranks + rank];
      if (row < 0) continue;
      const MetadataOf to(call, rank);
      const auto at = static_cast<std::ptrdiff_t>(size_t(row) * params.topk + lane.pick);
      const int32_t local = static_cast<int32_t>(id - rank * local_experts);
      // Weak: `finished` says that they have arrived.
      store<Order::weak, Scope::sys>(to.ids + at, home == rank ? local : -1);
      store<Order::weak, Scope::sys>(to.weights + at, home == rank ? weight : 0.0f);
      if (lane.pick == 0)
        store<Order::weak, Scope::sys>(to.sources + row, static_cast<int32_t>(pick.token));
    }
  });
}

}  // namespace tokenyard::throughput
