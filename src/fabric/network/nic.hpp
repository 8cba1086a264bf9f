/// Stands in for the network card on a host without one: a kernel in the same words as any other,
/// so it runs on threads and in the simulator. Each block serves one queue pair at its own pace.
#pragma once

#include "device/accelerator.hpp"
#include "fabric/network/queue_pair.hpp"

namespace tokenyard {

struct NicParams {
  WaitContext wait_context;  ///< no deadline; the abort flag stops the card
  uint64_t seed;
  uint32_t nap_ns_max;            ///< bound on each nap around a request's execution; 0 for none
  QueuePair* const* pairs;        ///< [blocks]
  const uint32_t* ranks;          ///< [blocks] peer of each pair
  std::byte* const* peer_arenas;  ///< [blocks] each peer's arena, as the card addresses it
};

TOKENYARD_DECLARE_KERNEL(nic_kernel, NicParams);

}  // namespace tokenyard
