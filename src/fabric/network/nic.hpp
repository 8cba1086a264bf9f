/// Stands in for the network card on a host without one: a kernel in the same words as any other,
/// so it runs on threads and in the simulator. Each warp serves one queue at its own pace, and
/// promises only what device/network.hpp does.
#pragma once

#include "device/accelerator.hpp"
#include "device/mlx5_layout.hpp"
#include "fabric/network/regions.hpp"

namespace tokenyard {

/// How a simulated card behaves.
struct CardOptions {
  uint64_t seed = 0;
  uint32_t nap_ns_max = 20'000;  ///< bound on each pause between two steps of a queue; 0 for none
  uint32_t stall_ns_max = 0;     ///< bound on a queue's rare long pauses; 0 for none
  double gigabytes_per_s = 0;    ///< rate of the rank's link, outwards; 0: no limit
  double latency_us = 0;
  uint32_t first = 0;       ///< the number at which the counts of queues begin
  uint32_t dies_after = 0;  ///< steps of a queue, after which the card does nothing more; 0: never
  /// Blocks per ring, a power of 2, if kernels write entries of an mlx5 card and this one reads
  /// them; 0: kernels write our own requests.
  uint32_t mlx5_slots = 0;
};

/// A queue pair of an mlx5 card, as the card sees it.
struct Mlx5Pair {
  mlx5::Block* blocks;     ///< [slots]
  const uint32_t* record;  ///< `send` of the doorbell record
  mlx5::BlueFlame* blue_flame;
  mlx5::Completion* completion;
  uint32_t slots, number;
};

/// A request that the card has fetched and not yet executed.
struct NicEntry {
  static constexpr uint32_t kFragments = 4;
  NetworkRequest request;
  uint64_t due_ns;                ///< not executed before
  uint32_t cuts[kFragments + 1];  ///< a put's fragments end and begin at these bytes
  uint32_t unlanded, unread;      ///< bit per fragment that has not landed, whose source is to be
                                  ///< read
  uint32_t staged;                ///< whether its source is first copied to the stage, at `stage`
  uint32_t stage;
};

struct NicParams {
  static constexpr uint32_t kWarps = 8;             ///< per block
  static constexpr uint32_t kStageBytes = 1 << 16;  ///< per queue
  WaitContext wait_context;                         ///< no deadline; the abort flag stops the card
  uint64_t seed;
  uint32_t nap_ns_max, stall_ns_max;
  uint64_t latency_ns;
  uint64_t fs_per_byte;            ///< femtoseconds on the link; 0: no limit
  uint64_t* link_free_ns;          ///< when the link has sent all that was posted
  uint32_t rank;                   ///< this rank
  uint32_t dies_after;             ///< steps of a queue; 0: never
  uint32_t queues;                 ///< at most blocks * kWarps
  QueuePair* const* pairs;         ///< [queues]
  const Mlx5Pair* mlx5_pairs;      ///< [queues], or null
  const RegionTable* peer_tables;  ///< [queues] of each queue's peer
  RegionTable table;               ///< this rank's own
  const uint32_t* gone;            ///< [ranks] abort words: requests to these ranks are dropped
  AbortWord* refused;              ///< the rank's abort word, which a refusal sets to kRefused
  NicEntry* entries;               ///< [queues][QueuePair::kSlots]
  std::byte* stages;               ///< [queues][kStageBytes]
};

TOKENYARD_DECLARE_KERNEL(nic_kernel, NicParams);

}  // namespace tokenyard
