/// Requests as kernels, networks and hosts see them: keys, places, rings and refusals.
#pragma once

#include <cstddef>

#include "device/memory.hpp"
#include "device/wait.hpp"

namespace tokenyard {

/// Names a registered region of a rank: the low 8 bits are its number, the others a tag that is
/// drawn anew for each registration. 0 names none.
using MemoryKey = uint32_t;
TOKENYARD_HOST_DEVICE constexpr uint32_t region_of_key(MemoryKey key) {
  return key & 0xff;
}

inline constexpr uint32_t kNetworkRegions = 32;  ///< per rank; the arena is one

/// A place in a peer's registered region.
struct NetworkTarget {
  MemoryKey key = 0;
  uint64_t offset = 0;  ///< bytes from the region's start

  TOKENYARD_HOST_DEVICE NetworkTarget operator+(uint64_t bytes) const {
    return {key, offset + bytes};
  }
};

/// A piece of a put's source, in a registered region of this rank.
struct NetworkSource {
  MemoryKey key;
  uint32_t bytes;
  const void* from;
};

inline constexpr uint32_t kNetworkPutMax = 1u << 30;  ///< bytes per put
/// Bytes per inline put. On mlx5, 28 fit into a work queue entry of 64 bytes, and more take two.
inline constexpr uint32_t kNetworkInlineMax = 32;

struct alignas(64) NetworkRequest {
  enum class Kind : uint8_t { put, put_inline, signal };
  Kind kind;
  uint8_t pieces;         ///< put: sources that it gathers into one range, 1 or 2
  uint16_t inline_bytes;  ///< put_inline; 65535 also stands for more
  MemoryKey target_key;
  uint64_t target;  ///< byte offset in the peer's region
  uint64_t addend;  ///< signal
  uint64_t zero;
  union {
    NetworkSource sources[2];
    uint8_t bytes[kNetworkInlineMax];
  };
};
static_assert(sizeof(NetworkRequest) == 64 && offsetof(NetworkRequest, bytes) == 32);

/// The check of a request that failed, as NetworkFault names it.
enum class NetworkCheck : uint32_t {
  none,
  target_key,
  target_range,
  source_key,
  source_range,
  size,       ///< of a put, in bytes
  alignment,  ///< of a signal's word
  request,    ///< a kind or number of pieces that does not exist
  // A card tells less of what another card has refused, and some cards do of their own.
  target,      ///< key, range or alignment
  source,      ///< key or range
  queue,       ///< the queue has ended, and the reason is lost
  connection,  ///< broken, although nobody has told that the peer is gone
};
inline constexpr NetworkCheck kLastNetworkCheck = NetworkCheck::connection;

/// Why a network refused a request. A number that it does not know is 0.
struct NetworkRefusal {
  uint32_t region;  ///< number in the table of its owner
  uint64_t expected, seen;
};

/// One of the queues to a peer, in memory that host, kernels and network share. The counts only
/// grow, may wrap, and begin at the same number, which the host chooses.
struct QueuePair {
  static constexpr uint32_t kSlots = 64;
  uint32_t posted;                 ///< written by kernels
  alignas(64) uint32_t completed;  ///< requests whose sources were read; written by the network
  uint32_t settled;                ///< `posted` as of a time when nothing was under way
  uint32_t refused;                ///< a NetworkCheck; then the queue has ended
  NetworkRefusal refusal;          ///< valid once `refused` is set
  alignas(64) uint32_t rank, peer, number;  ///< written by the host before any kernel runs
  NetworkRequest ring[kSlots];
};

struct Mlx5SendQueue;
struct NetworkDoorbell;

/// The kernels' own end of a queue, in device memory: a post reads nothing across PCIe, unless the
/// ring was full when it was last looked at.
struct alignas(64) QueueEnd {
  QueuePair* pair;      ///< null: there is no queue
  Mlx5SendQueue* mlx5;  ///< takes the requests in place of the pair's ring; null: the ring does
  NetworkDoorbell* doorbell;  ///< wakes what works the ring off; null: it looks by itself
  uint32_t rank, peer, number;
  uint32_t posted;     ///< as in the pair
  uint32_t completed;  ///< as last seen in the pair
};

/// Packs what a NetworkFault names and a WaitReport has no field for.
struct NetworkFaultDetail {
  uint32_t check, rank, queue, region;

  TOKENYARD_HOST_DEVICE uint64_t packed() const {
    return uint64_t{check} << 56 | uint64_t{rank} << 32 | uint64_t{queue} << 16 | region;
  }
  static constexpr NetworkFaultDetail of(uint64_t packed) {
    return {static_cast<uint32_t>(packed >> 56), static_cast<uint32_t>(packed >> 32) & 0xffffff,
            static_cast<uint32_t>(packed >> 16) & 0xffff, static_cast<uint32_t>(packed) & 0xffff};
  }
};

/// Returns whether this rank's host has told that a rank is dead or has left. A rank that gave up
/// its own waits (kCancelled) knows nothing of others.
TOKENYARD_DEVICE bool is_gone(const uint32_t* gone, uint32_t rank) {
  // Relaxed: the word says only that nothing more comes; no data depends on it.
  const uint32_t word = load<Order::relaxed, Scope::sys>(gone + rank);
  return word != kNoAbort && word != kCancelled;
}

/// Fails a wait on a queue whose refusal has been acquired; returns false.
TOKENYARD_DEVICE bool fail_refused(const QueueEnd& end, const Deadline& deadline, Awaited what,
                                   uint32_t check) {
  const NetworkRefusal refusal = end.pair->refusal;
  what.expected = refusal.expected;
  what.seen = refusal.seen;
  what.detail =
      NetworkFaultDetail{
          .check = check, .rank = end.rank, .queue = end.number, .region = refusal.region}
          .packed();
  deadline.fail(Failure::network, what);
  return false;
}

/// Publishes that a request of a queue was refused, and ends the waits of its rank that depend on
/// other queues. `refused`: the rank's abort word.
TOKENYARD_DEVICE void publish_refusal(QueuePair& pair, AbortWord* refused, NetworkCheck check,
                                      const NetworkRefusal& refusal) {
  pair.refusal = refusal;
  // Publishes the refusal.
  store<Order::release, Scope::sys>(&pair.refused, static_cast<uint32_t>(check));
  // Publishes it to the waits that this ends. A loss or `cancel` stays.
  const AbortWord seen = compare_exchange<Order::release, Scope::sys>(refused, kNoAbort, kRefused);
  if (seen == kLeft) compare_exchange<Order::release, Scope::sys>(refused, kLeft, kRefused);
}

}  // namespace tokenyard
