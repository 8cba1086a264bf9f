/// Chunks of messages, which warps claim: the links serve multiprocessors very unequally.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "collectives/device/kernels/pieces.hpp"
#include "device/device.hpp"

namespace tokenyard::device_collectives {

using Piece16 = Piece<4>;

/// Pieces that a lane loads before it uses the first of them.
inline constexpr uint32_t kPiecesAtOnce = 4;
/// The same where it folds them, which takes more registers.
inline constexpr uint32_t kFoldsAtOnce = kPiecesAtOnce / 2;

/// Returns the next chunk for a warp of this role. A warp claims at most as often as there are
/// chunks, and once more, so no loop lasts for ever, whatever the counter says.
TOKENYARD_DEVICE uint64_t claim_chunk(const CallParams& call, uint32_t parity, Role role) {
  uint64_t* const next = &call.workspace->claims[parity][static_cast<uint32_t>(role)];
  return warp::once([&] { return fetch_add<Order::relaxed, Scope::gpu>(next, 1); });
}

}  // namespace tokenyard::device_collectives
