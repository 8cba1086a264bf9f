/// How a piece is taken out of staging.
#pragma once

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"

namespace tokenyard::low_latency {

/// Empties a place. Called by the lane that has read it. Relaxed and not weak: the relaxed load of
/// a piece does not order the peer's store before this one, so a weak store would race with it. The
/// release in say_drained orders this store before the source's next one.
TOKENYARD_DEVICE void put_back(Peer<Bytes16> staged) {
  store<Order::relaxed, Scope::sys>(staged, empty_piece());
}

/// Returns the piece that was found and empties its place; zeros if it has not arrived. Called by
/// one lane. A place that received nothing is left alone: a masked rank may still write there, and
/// the place is refilled before that rank is unmasked.
TOKENYARD_DEVICE Bytes16 emptied(Peer<Bytes16> staged, const Bytes16& piece) {
  if (!has_come(piece)) return Bytes16{};
  put_back(staged);
  return piece;
}

}  // namespace tokenyard::low_latency
