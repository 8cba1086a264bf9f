/// The comparison of the sizes that pairs of ranks have told all ranks.
#pragma once

#include "collectives/device/kernels/device_call_kernel.hpp"

namespace tokenyard::device_collectives {

/// Compares what all ranks send with what others expect. Returns whether all agree. Called by a
/// warp, once it has all ranks' call words.
TOKENYARD_DEVICE bool compare_counts(const CallParams& call, uint32_t parity,
                                     const BlockDeadline& deadline) {
  if (!warp::all(!deadline.failed())) return false;
  warp::sync();  // Each lane has acquired another rank's word.
  const auto count_of = [&](uint32_t rank, uint32_t peer) {
    return CountWord{
        load<Order::relaxed, Scope::sys>(call.windows.counts(call.rank, parity, rank, peer))};
  };
  const uint32_t pairs = call.ranks * call.ranks;
  for (uint32_t first = 0; first < pairs; first += kWarpLanes) {
    const uint32_t pair = first + warp::lane();
    const uint32_t source = pair / call.ranks, destination = pair % call.ranks;
    uint64_t sent = 0, expected = 0;
    if (pair < pairs && source != destination) {
      sent = count_of(source, destination).sent();
      expected = count_of(destination, source).expected();
    }
    const uint32_t others = warp::ballot(sent != expected);
    if (others == 0) continue;
    if (warp::lane() == first_bit(others))
      deadline.fail(Failure::refused, {.phase = static_cast<uint32_t>(WaitPhase::counts),
                                       .rank = destination,
                                       .expected = sent | uint64_t{source} << CountWord::kBits,
                                       .seen = expected});
    return false;
  }
  return true;
}

}  // namespace tokenyard::device_collectives
