/// The words that reach ranks without load/store. A kernel posts requests to a queue in its own
/// rank's memory; a network works them off later.
///
///   kernel:   request into the ring, then `posted` (release)      ->  network: acquires it
///   network:  reads the sources, stores to the peer, then adds to its word (release, sys)
///                                                                 ->  peer: await_signal
///   network:  `completed` (release) once the sources were read    ->  kernel: acquires it in
///   `flush`
///
/// Promises, and nothing else (docs/decisions/network_requests.md):
///   1. A signal is applied after the puts that were posted before it on its queue: a thread that
///      acquires the sum sees their bytes.
///   2. After a flush, the sources posted so far on the queue may be reused. `has_read` asks the
///      same without waiting.
///
/// Puts of one queue land in any order, torn at any byte, and also before a signal that was posted
/// before them. Signals are applied in any order. A flush says nothing of the other side, nor does
/// a landing say anything of the source, which may be read again until the flush. Queues know
/// nothing of one another. An empty put lands nothing, and its keys may go unchecked.
#pragma once

#include "device/doorbell.hpp"
#include "device/memory.hpp"
#include "device/mlx5_queue.hpp"
#include "device/mutated.hpp"
#include "device/network_request.hpp"
#include "device/wait.hpp"

namespace tokenyard {

/// A queue, as a kernel uses it. Only one thread of this rank may use it at a time, ordered after
/// the one before, except on an mlx5 queue. Each word returns false if the call has failed (see
/// wait_until).
class NetworkQueue {
 public:
  TOKENYARD_DEVICE explicit NetworkQueue(QueueEnd* end) : end_(end) {}

  /// Copies one piece, or two one behind the other, to the target. The sources must stay unchanged
  /// until a flush, or `has_read`, has covered them.
  TOKENYARD_DEVICE bool put(const Deadline& deadline, uint32_t phase, const NetworkTarget& target,
                            const NetworkSource& source) const {
    if (end_->mlx5 != nullptr) return mlx5_queue().put(deadline, phase, target, &source, 1);
    const NetworkRequest requests[] = {put_of(target, source, {}, 1)};
    return post(deadline, phase, requests);
  }
  TOKENYARD_DEVICE bool put(const Deadline& deadline, uint32_t phase, const NetworkTarget& target,
                            const NetworkSource& first, const NetworkSource& second) const {
    if (end_->mlx5 != nullptr) {
      const NetworkSource pieces[2] = {first, second};
      return mlx5_queue().put(deadline, phase, target, pieces, 2);
    }
    const NetworkRequest requests[] = {put_of(target, first, second, 2)};
    return post(deadline, phase, requests);
  }
  /// A put and the signal behind it, published at once: a network that carries both together sends
  /// one message instead of two.
  TOKENYARD_DEVICE bool put_and_signal(const Deadline& deadline, uint32_t phase,
                                       const NetworkTarget& target, const NetworkSource& source,
                                       const NetworkTarget& word, uint64_t addend) const {
    if (end_->mlx5 != nullptr)
      return mlx5_queue().put_and_signal(deadline, phase, target, &source, 1, word, addend);
    const NetworkRequest requests[] = {put_of(target, source, {}, 1), signal_of(word, addend)};
    return post(deadline, phase, requests);
  }
  TOKENYARD_DEVICE bool put_and_signal(const Deadline& deadline, uint32_t phase,
                                       const NetworkTarget& target, const NetworkSource& first,
                                       const NetworkSource& second, const NetworkTarget& word,
                                       uint64_t addend) const {
    if (end_->mlx5 != nullptr) {
      const NetworkSource pieces[2] = {first, second};
      return mlx5_queue().put_and_signal(deadline, phase, target, pieces, 2, word, addend);
    }
    const NetworkRequest requests[] = {put_of(target, first, second, 2), signal_of(word, addend)};
    return post(deadline, phase, requests);
  }
  /// Puts up to kNetworkInlineMax bytes, which it has copied when it returns.
  TOKENYARD_DEVICE bool put_inline(const Deadline& deadline, uint32_t phase,
                                   const NetworkTarget& target, const void* from,
                                   uint32_t bytes) const {
    if (end_->mlx5 != nullptr) return mlx5_queue().put_inline(deadline, phase, target, from, bytes);
    const NetworkRequest requests[] = {inline_of(target, from, bytes)};
    return post(deadline, phase, requests);
  }
  /// Such a put and the signal behind it, published at once.
  TOKENYARD_DEVICE bool put_inline_and_signal(const Deadline& deadline, uint32_t phase,
                                              const NetworkTarget& target, const void* from,
                                              uint32_t bytes, const NetworkTarget& word,
                                              uint64_t addend) const {
    if (end_->mlx5 != nullptr) {
      return mlx5_queue().put_inline_and_signal(deadline, phase, target, from, bytes, word, addend);
    }
    const NetworkRequest requests[] = {inline_of(target, from, bytes), signal_of(word, addend)};
    return post(deadline, phase, requests);
  }
  /// Adds to an 8-byte word that signals alone write, after this queue's earlier puts.
  TOKENYARD_DEVICE bool signal(const Deadline& deadline, uint32_t phase,
                               const NetworkTarget& target, uint64_t addend) const {
    if (end_->mlx5 != nullptr) return mlx5_queue().signal(deadline, phase, target, addend);
    const NetworkRequest requests[] = {signal_of(target, addend)};
    return post(deadline, phase, requests);
  }
  /// Waits until the sources of all requests posted so far may be reused.
  TOKENYARD_DEVICE bool flush(const Deadline& deadline, uint32_t phase) const {
    if (mutated()) return true;  // A mutant reuses the sources at once.
    if (end_->mlx5 != nullptr) return mlx5_queue().flush(deadline, phase);
    return completed_at_least(deadline, phase, end_->posted);
  }
  /// Returns the number of the last request posted, for `has_read`.
  TOKENYARD_DEVICE uint32_t posted() const {
    return end_->mlx5 != nullptr ? mlx5_queue().reserved() : end_->posted;
  }
  /// Returns whether the sources of the requests up to this number may be reused, as after a flush
  /// that followed them. Does not wait. True, too, once the queue has ended.
  TOKENYARD_DEVICE bool has_read(uint32_t number) const {
    if (end_->mlx5 != nullptr) return mlx5_queue().has_read(number);
    if (static_cast<int32_t>(end_->completed - number) >= 0) return true;
    // Acquire: sources are reused only after the network has read them.
    end_->completed = load<Order::acquire, Scope::sys>(&end_->pair->completed);
    return static_cast<int32_t>(end_->completed - number) >= 0;
  }

 private:
  TOKENYARD_DEVICE Mlx5Queue mlx5_queue() const { return Mlx5Queue(*end_); }

  TOKENYARD_DEVICE static NetworkRequest request_of(NetworkRequest::Kind kind,
                                                    const NetworkTarget& target) {
    NetworkRequest request;
    request.kind = kind;
    request.pieces = 0;
    request.inline_bytes = 0;
    request.target_key = target.key;
    request.target = target.offset;
    request.addend = 0;
    request.zero = 0;
    return request;
  }

  TOKENYARD_DEVICE static NetworkRequest put_of(const NetworkTarget& target,
                                                const NetworkSource& first,
                                                const NetworkSource& second, uint8_t pieces) {
    NetworkRequest request = request_of(NetworkRequest::Kind::put, target);
    request.pieces = pieces;
    request.sources[0] = first;
    request.sources[1] = second;
    return request;
  }
  TOKENYARD_DEVICE static NetworkRequest inline_of(const NetworkTarget& target, const void* from,
                                                   uint32_t bytes) {
    NetworkRequest request = request_of(NetworkRequest::Kind::put_inline, target);
    request.inline_bytes = static_cast<uint16_t>(bytes < 0xffff ? bytes : 0xffff);
    for (uint32_t byte = 0; byte < kNetworkInlineMax; ++byte)
      request.bytes[byte] = byte < bytes ? static_cast<const uint8_t*>(from)[byte] : uint8_t{0};
    return request;
  }
  TOKENYARD_DEVICE static NetworkRequest signal_of(const NetworkTarget& word, uint64_t addend) {
    NetworkRequest request = request_of(NetworkRequest::Kind::signal, word);
    request.addend = addend;
    request.sources[0] = request.sources[1] = {};
    return request;
  }

  template <uint32_t count>
  TOKENYARD_DEVICE bool post(const Deadline& deadline, uint32_t phase,
                             const NetworkRequest (&requests)[count]) const {
    // Loaded at once: one after the other, each costs the latency of a GPU's second-level cache.
    QueuePair* const pair = end_->pair;
    NetworkDoorbell* const doorbell = end_->doorbell;
    const uint32_t first = end_->posted, completed = end_->completed;
    // A slot is free once the request that used it last has completed.
    const uint32_t needed = first + count - QueuePair::kSlots;
    if (static_cast<int32_t>(completed - needed) < 0 &&
        !completed_at_least(deadline, phase, needed))
      return false;
    for (uint32_t number = 0; number < count; ++number)
      pair->ring[(first + number) % QueuePair::kSlots] = requests[number];
    end_->posted = first + count;
    // Publishes the requests and the contents of their sources.
    store<Order::release, Scope::sys>(&pair->posted, first + count);
    if (doorbell != nullptr) ring_doorbell(*doorbell);
    return true;
  }

  TOKENYARD_DEVICE bool completed_at_least(const Deadline& deadline, uint32_t phase,
                                           uint32_t count) const {
    const auto reached = [&] { return static_cast<int32_t>(end_->completed - count) >= 0; };
    if (reached()) return true;
    Awaited what{.phase = phase, .rank = end_->peer, .expected = count};
    const QueuePair& pair = *end_->pair;
    uint32_t refused = 0, polls = 0;
    const bool ended = wait_until(deadline, what, [&] {
      // Acquire: slots and sources are reused only after the network has read them.
      end_->completed = load<Order::acquire, Scope::sys>(&pair.completed);
      what.seen = end_->completed;
      if (reached()) return true;
      // Now and then: a second look across PCIe takes as long as the first one.
      if (++polls % kPollsPerRefusal != 0) return false;
      // Acquires the refusal.
      refused = load<Order::acquire, Scope::sys>(&pair.refused);
      return refused != 0;
    });
    return refused == 0 ? ended : fail_refused(*end_, deadline, what, refused);
  }

  static constexpr uint32_t kPollsPerRefusal = 8;

  QueueEnd* end_;
};

/// This rank's queues. Part of a kernel's params.
struct NetworkQueues {
  QueueEnd* ends = nullptr;               ///< [ranks][per_peer], no pair to ranks with load/store
  const MemoryKey* arena_keys = nullptr;  ///< [ranks] key of each rank's arena, this rank's
                                          ///< included; 0 for other ranks with load/store
  uint32_t per_peer = 0;

  TOKENYARD_DEVICE bool reaches(uint32_t rank) const {
    return ends != nullptr && ends[rank * per_peer].pair != nullptr;
  }
  TOKENYARD_DEVICE NetworkQueue of(uint32_t rank, uint32_t queue) const {
    return NetworkQueue(ends + rank * per_peer + queue);
  }
};

/// Waits until signals have raised `word`, in this rank's memory, to `at_least`. `rank` and `phase`
/// name the wait.
TOKENYARD_DEVICE bool await_signal(const Deadline& deadline, uint32_t phase, uint32_t rank,
                                   const uint64_t* word, uint64_t at_least) {
  Awaited what{.phase = phase, .rank = rank, .expected = at_least};
  return wait_until(deadline, what, [&] {
    // Acquires the puts before each signal that is part of the sum.
    what.seen = load<Order::acquire, Scope::sys>(word);
    return what.seen >= at_least;
  });
}

}  // namespace tokenyard
