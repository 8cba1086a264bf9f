/// Sums over a warp of several values at once.
#pragma once

#include "device/device.hpp"
#include "device/unroll.hpp"

namespace tokenyard::megakernel {

/// Each exchange halves how many values a lane still has to do with.
template <uint32_t kLeft, uint32_t mask, uint32_t kValues>
DEVICE void exchange_values(float (&values)[kValues]) {
  const bool upper = (warp::lane() & mask) != 0;
  UNROLL
  for (uint32_t i = 0; i < kLeft; ++i) {
    // Values first: a choice between places would make the compiler give them addresses.
    const float low = values[i], high = values[i + kLeft];
    values[i] = (upper ? high : low) + warp::shuffle_xor(upper ? low : high, mask);
  }
  if constexpr (kLeft > 1) exchange_values<kLeft / 2, mask / 2>(values);
}

/// `kValues`: a power of two up to 32. Of each value its sum over all lanes: value v in the lanes
/// from v * 32 / kValues on, as many as the next one's begin after them.
template <uint32_t kValues>
DEVICE float scattered_sum(float (&values)[kValues]) {
  constexpr uint32_t kSharers = kWarpLanes / kValues;
  if constexpr (kValues > 1) exchange_values<kValues / 2, kWarpLanes / 2>(values);
  UNROLL
  for (uint32_t mask = kSharers / 2; mask > 0; mask /= 2)
    values[0] += warp::shuffle_xor(values[0], mask);
  return values[0];
}

}  // namespace tokenyard::megakernel
