/// Fetches the weights beside the rows: one warp of a pulling block uses ordinary loads, since they
/// are small, while the other warps are busy with the rows.
#pragma once

#include "expert_parallel/throughput/kernels/combine_shared.hpp"

namespace tokenyard::throughput {

/// Sums a weight over the ranks that a token went to, in rank order: one of them holds the choice's
/// expert, and the others have 0 unless the caller changed it.
TOKENYARD_DEVICE float home_weight(const Combine& call, uint32_t token, uint32_t choice) {
  const CombineParams& params = call.params;
  float sum = 0;
  for (uint32_t rank = 0; rank < params.call.ranks; ++rank) {
    const int32_t row = load_cached(params.route + size_t{token} * params.call.ranks + rank);
    if (row < 0) continue;
    const auto weights = (params.call.arenas.of(rank) +
                          static_cast<std::ptrdiff_t>(call.ready_words().weights_at(rank)))
                             .template as<const float>();
    const size_t at = size_t(row) * params.topk + choice;
    sum += load<Order::weak, Scope::sys>(weights + static_cast<std::ptrdiff_t>(at));
  }
  return sum;
}

TOKENYARD_DEVICE void combine_weights(const Combine& call) {
  const CombineParams& params = call.params;
  if (params.call.weights != Weights::with) return;
  for (uint32_t token = block::index(); token < params.tokens; token += grid::blocks())
    for (uint32_t choice = warp::lane(); choice < params.topk; choice += kWarpLanes)
      params.out_weights[size_t{token} * params.topk + choice] = home_weight(call, token, choice);
}

}  // namespace tokenyard::throughput
