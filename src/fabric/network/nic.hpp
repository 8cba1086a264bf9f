/// Stands in for the network card on a host without one: a kernel in the same words as any other,
/// so it runs on threads and in the simulator. Each block serves one queue at its own pace, and
/// promises only what device/network.hpp does.
#pragma once

#include "device/accelerator.hpp"
#include "fabric/network/regions.hpp"

namespace tokenyard {

/// How a simulated card behaves.
struct CardOptions {
  uint64_t seed = 0;
  uint32_t nap_ns_max = 20'000;  ///< bound on each pause between two steps of a queue; 0 for none
  uint32_t stall_ns_max = 0;     ///< bound on a queue's rare long pauses; 0 for none
  double gigabytes_per_s = 0;    ///< rate of the rank's link, outwards; 0: no limit
  double latency_us = 0;
};

/// A request that the card has fetched and not yet executed.
struct NicEntry {
  static constexpr uint32_t kFragments = 4;
  static constexpr uint32_t kStageBytes = 256;
  NetworkRequest request;
  uint64_t due_ns;                ///< not executed before
  uint32_t cuts[kFragments + 1];  ///< a put's fragments end and begin at these bytes
  uint32_t remaining;             ///< bit per fragment that has not landed
  uint32_t staged;                ///< whether `stage` holds the source
  alignas(16) std::byte stage[kStageBytes];
};

struct NicParams {
  WaitContext wait_context;  ///< no deadline; the abort flag stops the card
  uint64_t seed;
  uint32_t nap_ns_max, stall_ns_max;
  uint64_t latency_ns;
  uint64_t fs_per_byte;            ///< femtoseconds on the link; 0: no limit
  uint64_t* link_free_ns;          ///< when the link has sent all that was posted
  uint32_t rank;                   ///< this rank
  QueuePair* const* pairs;         ///< [blocks]
  const RegionTable* peer_tables;  ///< [blocks] of each queue's peer
  RegionTable table;               ///< this rank's own
  const uint32_t* gone;            ///< [ranks] abort words: requests to these ranks are dropped
  NicEntry* entries;               ///< [blocks][QueuePair::kSlots]
};

TOKENYARD_DECLARE_KERNEL(nic_kernel, NicParams);

}  // namespace tokenyard
