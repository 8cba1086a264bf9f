/// How a piece leaves staging.
#pragma once

#include "expert_parallel/low_latency/call_kernel.hpp"

namespace tokenyard::low_latency {

/// By one lane: the piece at `staged`, once it has come. False if its source has been masked.
DEVICE bool await_piece(const Call& call, Phase phase, uint32_t source, Peer<Bytes16> staged,
                        Bytes16& piece) {
  return call.await(phase, source, call.epoch, [&](uint64_t&) {
    // Relaxed: sixteen bytes are their own flag.
    piece = load<Order::relaxed, Scope::sys>(staged);
    return has_come(piece);
  });
}

/// By the lane that has read it. Weak: nobody else looks at the place before a later kernel's
/// say_drained has released it to the source.
DEVICE void put_back(Peer<Bytes16> staged) {
  store_vector(staged, empty_piece());
}

/// By one lane: takes a piece and empties its place; zeros if it did not come. That place is left
/// as it is, for a masked rank may yet write there, and is refilled before it is unmasked.
DEVICE Bytes16 take(const Call& call, Phase phase, uint32_t source, Peer<Bytes16> staged) {
  Bytes16 piece{};
  if (!await_piece(call, phase, source, staged, piece)) return Bytes16{};
  put_back(staged);
  return piece;
}

}  // namespace tokenyard::low_latency
