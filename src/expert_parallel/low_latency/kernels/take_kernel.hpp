/// How a piece leaves staging.
#pragma once

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"

namespace tokenyard::low_latency {

/// By the lane that has read it. Relaxed, not weak: reading a piece with a relaxed load does not
/// order its store before this one, and a weak store would race with it. That this store comes
/// before the source's next one is say_drained's business.
DEVICE void put_back(Peer<Bytes16> staged) {
  store<Order::relaxed, Scope::sys>(staged, empty_piece());
}

/// By one lane: a piece as it was found, whose place it empties; zeros if it has not come. A place
/// that nothing came to is left as it is, for a masked rank may yet write there, and is refilled
/// before it is unmasked.
DEVICE Bytes16 emptied(Peer<Bytes16> staged, const Bytes16& piece) {
  if (!has_come(piece)) return Bytes16{};
  put_back(staged);
  return piece;
}

}  // namespace tokenyard::low_latency
