#pragma once

#include "fabric/network/nic.hpp"

namespace tokenyard {

/// Returns the next number of a random sequence fixed by the seed, so that a run can be replayed.
TOKENYARD_DEVICE uint32_t nic_chance(uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(mixed >> 32);
}

TOKENYARD_DEVICE void nic_dawdle(const NicParams& params, uint64_t& chance) {
  if (params.nap_ns_max != 0) nap(nic_chance(chance) % params.nap_ns_max);
}

TOKENYARD_DEVICE void nic_put(std::byte* to, const std::byte* from, uint64_t bytes) {
  uint64_t at = 0;
  // 4-byte words if both ends are aligned, else bytes: a put may have any length and alignment.
  if (reinterpret_cast<uintptr_t>(to) % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    for (; at + 4 <= bytes; at += 4) {
      store<Order::weak, Scope::sys>(Peer<uint32_t>(reinterpret_cast<uint32_t*>(to + at)),
                                     *reinterpret_cast<const uint32_t*>(from + at));
    }
  }
  for (; at < bytes; ++at) {
    store<Order::weak, Scope::sys>(Peer<uint8_t>(reinterpret_cast<uint8_t*>(to + at)),
                                   *reinterpret_cast<const uint8_t*>(from + at));
  }
}

/// Executes the requests of one queue pair until the abort flag is set.
TOKENYARD_DEVICE void nic_body(const NicParams& params) {
  if (thread::index() != 0) return;
  const Deadline forever = params.wait_context.start();
  QueuePair& pair = *params.pairs[block::index()];
  std::byte* const arena = params.peer_arenas[block::index()];
  uint64_t chance = params.seed + block::index() * 0x632be59bd9b4e019u;
  for (uint32_t done = 0;; ++done) {
    Awaited what{.phase = 0, .rank = params.ranks[block::index()], .expected = done + 1};
    const bool posted = wait_until(forever, what, [&] {
      // Acquires the request and its source.
      what.seen = load<Order::acquire, Scope::sys>(&pair.posted);
      return what.seen != done;
    });
    if (!posted) return;
    nic_dawdle(params, chance);
    const WorkRequest request = pair.ring[done % QueuePair::kSlots];
    if (request.kind == WorkRequest::Kind::put) {
      nic_put(arena + request.target, request.from, request.bytes);
    } else {
      // Releases the earlier puts of this queue.
      add<Order::release, Scope::sys>(
          Peer<uint32_t>(reinterpret_cast<uint32_t*>(arena + request.target)), request.value);
    }
    nic_dawdle(params, chance);
    store<Order::release, Scope::sys>(&pair.completed, done + 1);
  }
}

TOKENYARD_DEFINE_KERNEL(nic_kernel, nic_body, NicParams, NoShared, 32)

}  // namespace tokenyard
