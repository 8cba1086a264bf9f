/// How a piece leaves staging.
#pragma once

#include "expert_parallel/low_latency/call_kernel.hpp"

namespace tokenyard::low_latency {

/// By one lane: the piece at `staged`, once it has come. False if its source has been masked.
DEVICE bool await_piece(const Call& call, Phase phase, uint32_t source, Peer<Bytes16> staged,
                        Bytes16& piece) {
  return call.await(phase, source, call.epoch(), [&](uint64_t&) {
    // Relaxed: sixteen bytes are their own flag.
    piece = load<Order::relaxed, Scope::sys>(staged);
    return has_come(piece);
  });
}

/// By the lane that has read it. Relaxed, not weak: reading a piece with a relaxed load does not
/// order its store before this one, and a weak store would race with it. That this store comes
/// before the source's next one is say_drained's business.
DEVICE void put_back(Peer<Bytes16> staged) {
  store<Order::relaxed, Scope::sys>(staged, empty_piece());
}

/// By one lane: takes a piece and empties its place; zeros if it did not come. `seen` is what an
/// earlier look found, which may be all there is to do. A place that nothing came to is left as it
/// is, for a masked rank may yet write there, and is refilled before it is unmasked.
DEVICE Bytes16 take(const Call& call, Phase phase, uint32_t source, Peer<Bytes16> staged,
                    const Bytes16& seen) {
  Bytes16 piece = seen;
  if (!has_come(piece) && !await_piece(call, phase, source, staged, piece)) return Bytes16{};
  put_back(staged);
  return piece;
}

}  // namespace tokenyard::low_latency
