/// What plays the network card on a host without one: a kernel, in the same words as any other, so
/// that it runs on threads as well as in the simulator. A block a queue pair, each at its own pace.
#pragma once

#include "device/accelerator.hpp"
#include "fabric/network/queue_pair.hpp"

namespace tokenyard {

struct NicParams {
  WaitContext wait_context;  ///< without end; the alarm stops the card
  uint64_t seed;
  uint32_t nap_ns_max;            ///< before the source is read, and before it is done
  QueuePair* const* pairs;        ///< [blocks]
  const uint32_t* ranks;          ///< [blocks] the peer of each
  std::byte* const* peer_arenas;  ///< [blocks] as the card reaches them
};

DECLARE_KERNEL(nic_kernel, NicParams);

}  // namespace tokenyard
