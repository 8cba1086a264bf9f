/// The words that reach ranks without load/store: put bytes, then signal. A kernel posts requests
/// to a queue in its own rank's memory; the network card, or the kernel that stands in for it
/// (nic_kernel.hpp), executes them later.
///
///   kernel:  request into the ring, then `posted` (release)  ->  card: acquires it
///   card:    reads the source later, stores to the peer, adds to its flag (release, sys)
///   card:    `completed` (release)  ->  kernel: acquires it in `flush`
///
/// Order: requests of one queue pair take effect in the order of posting; those of different queue
/// pairs are unordered. A put's source must stay unchanged until a flush has covered it.
#pragma once

#include "device/device.hpp"

namespace tokenyard {

struct WorkRequest {
  enum class Kind : uint32_t { put, signal };
  Kind kind;
  uint32_t value;         ///< signal: the addend
  uint64_t target;        ///< byte offset in the peer's arena
  const std::byte* from;  ///< put: the source, in this rank's memory
  uint64_t bytes;
};

/// One per peer, in this rank's memory, zeroed initially. The counts only grow, and may wrap.
struct QueuePair {
  static constexpr uint32_t kSlots = 64;
  uint32_t posted;     ///< written by kernels
  uint32_t completed;  ///< written by the card
  WorkRequest ring[kSlots];
};

/// A kernel's end of the queue to one rank. Only one thread of this rank may post at a time. Each
/// word returns false if the call has failed (see wait_until).
class NetworkQueue {
 public:
  TOKENYARD_DEVICE NetworkQueue(QueuePair* pair, uint32_t rank) : pair_(pair), rank_(rank) {}

  /// Copies the bytes to `target` in the rank's arena. `from` may be read until a flush covers it.
  TOKENYARD_DEVICE bool put(const Deadline& deadline, uint32_t phase, uint64_t target,
                            const void* from, uint64_t bytes) const {
    return post(deadline, phase,
                WorkRequest{.kind = WorkRequest::Kind::put,
                            .value = 0,
                            .target = target,
                            .from = static_cast<const std::byte*>(from),
                            .bytes = bytes});
  }
  /// Adds to a 4-byte flag; a thread that acquires the sum sees this queue's earlier puts.
  TOKENYARD_DEVICE bool signal(const Deadline& deadline, uint32_t phase, uint64_t target,
                               uint32_t value) const {
    return post(deadline, phase,
                WorkRequest{.kind = WorkRequest::Kind::signal,
                            .value = value,
                            .target = target,
                            .from = nullptr,
                            .bytes = sizeof(uint32_t)});
  }
  /// Waits until all requests posted so far have taken effect.
  TOKENYARD_DEVICE bool flush(const Deadline& deadline, uint32_t phase) const {
    return completed_at_least(deadline, phase, posted());
  }

 private:
  /// Relaxed: only this rank's kernels write it, and they post one at a time.
  TOKENYARD_DEVICE uint32_t posted() const {
    return load<Order::relaxed, Scope::sys>(&pair_->posted);
  }

  TOKENYARD_DEVICE bool post(const Deadline& deadline, uint32_t phase,
                             const WorkRequest& request) const {
    const uint32_t count = posted();
    // The slot is free once the card has executed the request that used it last.
    if (!completed_at_least(deadline, phase, count + 1 - QueuePair::kSlots)) return false;
    pair_->ring[count % QueuePair::kSlots] = request;
    // Publishes the request and the contents of its source.
    store<Order::release, Scope::sys>(&pair_->posted, count + 1);
    return true;
  }

  TOKENYARD_DEVICE bool completed_at_least(const Deadline& deadline, uint32_t phase,
                                           uint32_t count) const {
    Awaited what{.phase = phase, .rank = rank_, .expected = count};
    return wait_until(deadline, what, [&] {
      // Acquire: slots and sources are reused only after the card has read them.
      const uint32_t completed = load<Order::acquire, Scope::sys>(&pair_->completed);
      what.seen = completed;
      return static_cast<int32_t>(completed - count) >= 0;
    });
  }

  QueuePair* pair_;
  uint32_t rank_;
};

}  // namespace tokenyard
