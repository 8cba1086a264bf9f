#pragma once

#include "fabric/network/regions.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void open_gates(const GateParams& params) {
  for (uint32_t rank = 0; rank < params.table.ranks; ++rank) {
    // Publishes the region, which the host has written. The key was 0; a card with a wrong key may
    // be inside for a moment.
    add<Order::release, Scope::sys>(params.table.gate(params.number, rank), params.key);
  }
}

/// Takes the key away everywhere, then waits until no card is inside. A wait that fails leaves no
/// gate open.
TOKENYARD_DEVICE void close_gates(const GateParams& params) {
  for (uint32_t rank = 0; rank < params.table.ranks; ++rank) {
    const Peer<uint64_t> gate = params.table.gate(params.number, rank);
    // Relaxed: only this kernel changes the key, and cards change the number inside, so the
    // difference of keys is added.
    const auto key = static_cast<uint32_t>(load<Order::relaxed, Scope::sys>(gate));
    add<Order::relaxed, Scope::sys>(gate, uint64_t{params.key} - uint64_t{key});
  }
  const Deadline deadline = params.wait_context.start();
  for (uint32_t rank = 0; rank < params.table.ranks; ++rank) {
    const Peer<uint64_t> gate = params.table.gate(params.number, rank);
    Awaited what{.phase = 0, .rank = rank, .expected = 0};
    const bool left = wait_until(deadline, what, [&] {
      const bool gone = is_gone(params.gone, rank);
      // Acquires the accesses of the cards that were inside: the owner may free the memory.
      what.seen = load<Order::acquire, Scope::sys>(gate) / kGateUser;
      return gone || what.seen == 0;
    });
    if (!left) return;
  }
}

TOKENYARD_DEVICE void change_gates(const GateParams& params) {
  if (thread::index() != 0) return;
  if (params.key == 0 || params.key == kClosedKey) {
    close_gates(params);
  } else {
    open_gates(params);
  }
}

TOKENYARD_DEFINE_KERNEL(gate_kernel, change_gates, GateParams, NoShared, 32)

}  // namespace tokenyard
