/// Sends the metadata of rows: expert ids as local ids of the receiver, weights, source tokens.
#pragma once

#include "expert_parallel/throughput/kernels/counts_kernel.hpp"

namespace tokenyard::throughput {

/// Computes where each rank wants its metadata and scales from the rows that it has places for.
/// Called by one warp, before the threads that use it synchronize.
TOKENYARD_DEVICE void find_places(const Dispatch& call) {
  const uint32_t* const rows_on = call.params.call.kind == CallKind::dispatch_again
                                      ? call.params.table.rows_on()
                                      : call.tail.rows_on();
  const Places places = call.tail.places();
  for (uint32_t rank = warp::lane(); rank < call.tail.ranks; rank += kWarpLanes) {
    const ReceivedLayout layout =
        call.params.received(call.ready_words().places(rank, rows_on[rank]));
    const auto units = [](size_t bytes) { return static_cast<uint32_t>(bytes / kOffsetUnit); };
    const uint32_t rows = call.ready_words().of(ReadyWord::rows, rank);
    const uint32_t beside =
        call.ready_words().of(ReadyWord::beside, rank) - units(layout.beside_bytes());
    places.of(Place::ids, rank) = beside + units(layout.ids_at());
    places.of(Place::weights, rank) = beside + units(layout.weights_at());
    places.of(Place::sources, rank) = beside + units(layout.sources_at());
    places.of(Place::scales, rank) = rows + units(layout.scales_at());
  }
}

template <class T>
TOKENYARD_DEVICE Peer<T> place_on(const Dispatch& call, Place place, uint32_t rank) {
  const size_t at = size_t{call.tail.places().of(place, rank)} * kOffsetUnit;
  return (call.params.call.arenas.of(rank) + static_cast<std::ptrdiff_t>(at)).template as<T>();
}

/// Sends 32 choices of each token. Called by each warp that moves no rows. Goes rank by rank: rows
/// of neighbouring tokens on one rank are neighbours, so a warp's stores fill whole lines.
TOKENYARD_DEVICE void send_metadata_of(const Dispatch& call, uint32_t first_choice) {
  const DispatchParams& params = call.params;
  const uint32_t ranks = params.call.ranks;
  ChoiceSteps steps(params, tokens_of_warp(params), first_choice);
  const ChoiceLane& lane = steps.lane();
  steps.each([&](const Choice& choice) {
    if (!choice.present) return;
    const bool valid = choice.valid(params.experts);
    const uint32_t id = static_cast<uint32_t>(choice.id);
    const uint32_t home = valid ? params.partition.rank_of(id) : ranks;
    const auto local = static_cast<int32_t>(id - params.partition.first_of(home));
    const float weight =
        params.topk_weights == nullptr
            ? 1.0f
            : load_cached(params.topk_weights + size_t{choice.token} * params.topk + lane.choice);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const int32_t row = params.route[size_t{choice.token} * ranks + rank];
      if (row < 0) continue;
      const auto at = static_cast<std::ptrdiff_t>(size_t(row) * params.topk + lane.choice);
      // Weak: the release of `finished` publishes them.
      store<Order::weak, Scope::sys>(place_on<int32_t>(call, Place::ids, rank) + at,
                                     home == rank ? local : -1);
      store<Order::weak, Scope::sys>(place_on<float>(call, Place::weights, rank) + at,
                                     home == rank ? weight : 0.0f);
      if (lane.choice == 0)
        store<Order::weak, Scope::sys>(place_on<int32_t>(call, Place::sources, rank) + row,
                                       static_cast<int32_t>(choice.token));
    }
  });
}

/// Called by each warp that moves no rows.
TOKENYARD_DEVICE void send_metadata(const Dispatch& call) {
  for (uint32_t first = 0; first < call.params.topk; first += kWarpLanes)
    send_metadata_of(call, first);
}

/// Marks this rank's places that receive no row; each block takes a share. Called by all warps that
/// move no rows.
TOKENYARD_DEVICE void mark_padding(const Dispatch& call) {
  const DispatchParams& params = call.params;
  const uint32_t rank = params.call.rank, topk = params.topk;
  const uint32_t rows = call.tail.rows_on()[rank];
  const uint32_t places = call.ready_words().places(rank, rows);
  std::byte* const arena = params.call.arenas.mine();
  const auto mine = [&](Place place) {
    return arena + size_t{call.tail.places().of(place, rank)} * kOffsetUnit;
  };
  auto* const ids = reinterpret_cast<int32_t*>(mine(Place::ids));
  auto* const weights = reinterpret_cast<float*>(mine(Place::weights));
  auto* const sources = reinterpret_cast<int32_t*>(mine(Place::sources));
  const ThreadGroup thread_group = call.others();
  const size_t first = size_t{rows} * topk;
  for (size_t i = first + size_t{block::index()} * thread_group.size + thread_group.index;
       i < size_t{places} * topk; i += size_t{grid::blocks()} * thread_group.size) {
    ids[i] = -1;
    weights[i] = 0;
    if (i % topk == 0) sources[i / topk] = -1;
  }
}

}  // namespace tokenyard::throughput
