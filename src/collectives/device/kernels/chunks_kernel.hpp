/// Chunks of messages, which warps claim: the links serve multiprocessors very unequally.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "device/device.hpp"

namespace tokenyard::device_collectives {

/// The chunks that a warp claims, each before it begins the one before: the counter answers after
/// most of a microsecond. A warp takes at most as many as there are, and one more, so no loop lasts
/// for ever, whatever the counter says.
class ChunkClaims {
 public:
  TOKENYARD_DEVICE ChunkClaims(const CallParams& call, uint32_t parity, Role role)
      : next_(&call.workspace->claims[parity][static_cast<uint32_t>(role)]) {
    claim();
  }

  /// Returns the next chunk. Called by a warp.
  TOKENYARD_DEVICE uint64_t take() {
    const uint64_t chunk = warp::shuffle(claimed_, 0);
    claim();
    return chunk;
  }

 private:
  TOKENYARD_DEVICE void claim() {
    if (warp::lane() == 0) claimed_ = fetch_add<Order::relaxed, Scope::gpu>(next_, 1);
  }

  uint64_t* next_;
  uint64_t claimed_ = 0;
};

}  // namespace tokenyard::device_collectives
