/// Kernels of the network's contract, each one thread of one block, written against the words of
/// device/network.hpp and device/network_ring.hpp alone.
#pragma once

#include <cstddef>

#include "device/device.hpp"
#include "device/network.hpp"
#include "device/network_ring.hpp"

namespace tokenyard::testing {

inline constexpr uint32_t kNetworkRanks = 8;    ///< at most
inline constexpr uint32_t kNetworkQueues = 4;   ///< per peer, at most
inline constexpr uint32_t kMessageBytes = 320;  ///< at most
inline constexpr uint32_t kReuses = 6;          ///< messages from one source
inline constexpr uint32_t kRingSlots = 4;       ///< at most
inline constexpr uint32_t kRingSlotBytes = 48;
inline constexpr uint32_t kRingMetadataBytes = 12;  ///< of these

/// A rank's memory that the others reach, at one offset of every arena or registered region.
struct NetworkWindow {
  // Odd strides, so that messages lie at any alignment.
  uint8_t messages[2][kNetworkRanks][kMessageBytes + 3];  ///< [epoch parity][source rank]
  uint8_t reused[kNetworkRanks][kReuses][kMessageBytes + 3];
  alignas(16) std::byte ring[kNetworkRanks][kRingSlots * kRingSlotBytes];
  /// [source rank][queue] epochs. A word per queue, since signals of two queues come in any order.
  uint64_t arrived[kNetworkRanks][kNetworkQueues];
  uint64_t reused_arrived[kNetworkRanks];
  uint64_t ring_arrived[kNetworkRanks];   ///< [source rank] slots
  uint64_t ring_credited[kNetworkRanks];  ///< [target rank] slots
};

/// A rank's own memory: sources, and the counts that its ends of rings keep.
struct NetworkScratch {
  uint8_t sources[kNetworkRanks][2][kMessageBytes];
  uint8_t rows[kNetworkRanks][2][kRingSlotBytes];
  uint8_t metadata[kNetworkRanks][2][kRingMetadataBytes];
  uint64_t sent[kNetworkRanks], taken[kNetworkRanks];
};

enum class NetworkPhase : uint32_t { post, arrive, flush, credit };

struct NetworkParams {
  WaitContext wait_context;
  NetworkQueues queues;
  const NetworkTarget* windows;  ///< [ranks]
  NetworkWindow* mine;
  NetworkScratch* scratch;
  MemoryKey scratch_key;
  uint32_t rank, ranks, epoch;
  uint32_t ring_slots, ring_messages;
  uint32_t* wrong;  ///< bytes that were not as sent
};

TOKENYARD_DEVICE uint8_t network_byte(uint32_t from, uint32_t to, uint32_t number, uint32_t byte) {
  return static_cast<uint8_t>(from * 31 + to * 17 + number * 7 + byte + 1);
}

/// Returns the length of a message; among the first are one of a byte and one of the largest.
TOKENYARD_DEVICE uint32_t network_bytes(uint32_t from, uint32_t to, uint32_t number) {
  return 1 + (from * 13 + to * 5 + number * 53) % kMessageBytes;
}

TOKENYARD_DEVICE void write_message(uint8_t* to, uint32_t bytes, uint32_t from, uint32_t target,
                                    uint32_t number, uint32_t first = 0) {
  for (uint32_t byte = 0; byte < bytes; ++byte) {
    to[byte] = network_byte(from, target, number, first + byte);
  }
}
TOKENYARD_DEVICE uint32_t wrong_bytes(const uint8_t* at, uint32_t bytes, uint32_t from,
                                      uint32_t target, uint32_t number) {
  uint32_t wrong = 0;
  for (uint32_t byte = 0; byte < bytes; ++byte) {
    wrong += at[byte] != network_byte(from, target, number, byte);
  }
  return wrong;
}

/// The ranks' part of a kernel: what it sends, then what it awaits.
struct NetworkCall {
  const NetworkParams& params;
  const Deadline& deadline;

  static constexpr auto kPost = static_cast<uint32_t>(NetworkPhase::post);
  static constexpr auto kArrive = static_cast<uint32_t>(NetworkPhase::arrive);
  static constexpr auto kFlush = static_cast<uint32_t>(NetworkPhase::flush);
  static constexpr auto kCredit = static_cast<uint32_t>(NetworkPhase::credit);

  /// Returns the number of the queue that carries an epoch's messages.
  TOKENYARD_DEVICE uint32_t queue_of_epoch() const { return params.epoch % params.queues.per_peer; }
  TOKENYARD_DEVICE bool is_far(uint32_t rank) const { return params.queues.reaches(rank); }
  TOKENYARD_DEVICE NetworkQueue queue(uint32_t rank, uint32_t number) const {
    return params.queues.of(rank, number % params.queues.per_peer);
  }
  TOKENYARD_DEVICE NetworkSource source(const uint8_t* from, uint32_t bytes) const {
    return {.key = params.scratch_key, .bytes = bytes, .from = from};
  }
};

/// Order: four puts of a message, of which two are inline and the last gathers two pieces, then its
/// signal, in odd epochs posted with the last put. Every epoch uses another queue.
TOKENYARD_DEVICE bool send_message(const NetworkCall& call, uint32_t to) {
  const NetworkParams& params = call.params;
  uint8_t* const message = params.scratch->sources[to][params.epoch % 2];
  const uint32_t bytes = network_bytes(params.rank, to, params.epoch);
  write_message(message, bytes, params.rank, to, params.epoch);
  const NetworkQueue queue = call.queue(to, params.epoch);
  const NetworkTarget target =
      params.windows[to] + offsetof(NetworkWindow, messages) +
      (params.epoch % 2 * kNetworkRanks + params.rank) * sizeof(NetworkWindow::messages[0][0]);
  const uint32_t head = bytes < kNetworkInlineMax ? bytes : params.epoch % (kNetworkInlineMax + 1);
  const uint32_t middle = (bytes - head) / 3, third = (bytes - head - middle) / 2;
  const uint32_t last = head + middle + third;
  const NetworkTarget flag =
      params.windows[to] + offsetof(NetworkWindow, arrived) +
      (params.rank * kNetworkQueues + call.queue_of_epoch()) * sizeof(uint64_t);
  const uint32_t half = head / 2;
  if (!queue.put(call.deadline, call.kPost, target + head, call.source(message + head, middle)) ||
      !queue.put_inline(call.deadline, call.kPost, target, message, half) ||
      !queue.put_inline(call.deadline, call.kPost, target + half, message + half, head - half))
    return false;
  const NetworkSource pieces[] = {call.source(message + head + middle, third),
                                  call.source(message + last, bytes - last)};
  if (params.epoch % 2 != 0)
    return queue.put_and_signal(call.deadline, call.kPost, target + head + middle, pieces[0],
                                pieces[1], flag, 1);
  return queue.put(call.deadline, call.kPost, target + head + middle, pieces[0], pieces[1]) &&
         queue.signal(call.deadline, call.kPost, flag, 1);
}

TOKENYARD_DEVICE void network_exchange(const NetworkParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  const NetworkCall call{params, deadline};
  for (uint32_t to = 0; to < params.ranks; ++to) {
    if (call.is_far(to) && !send_message(call, to)) return;
  }
  uint32_t wrong = 0;
  for (uint32_t from = 0; from < params.ranks; ++from) {
    if (!call.is_far(from)) continue;
    const uint64_t* const word = &params.mine->arrived[from][call.queue_of_epoch()];
    const uint32_t epochs = 1 + (params.epoch - 1) / params.queues.per_peer;  // over this queue
    if (!await_signal(deadline, call.kArrive, from, word, epochs)) return;
    wrong += wrong_bytes(params.mine->messages[params.epoch % 2][from],
                         network_bytes(from, params.rank, params.epoch), from, params.rank,
                         params.epoch);
  }
  // The source of this epoch is written again two epochs later; a flush has covered it by then.
  for (uint32_t to = 0; to < params.ranks; ++to) {
    if (call.is_far(to) && !call.queue(to, params.epoch).flush(deadline, call.kFlush)) return;
  }
  if (wrong != 0) *params.wrong += wrong;
}

/// Flush: several messages from one source, which is written anew after each flush.
TOKENYARD_DEVICE bool send_reusing(const NetworkCall& call, uint32_t to) {
  const NetworkParams& params = call.params;
  uint8_t* const source = params.scratch->sources[to][0];
  const NetworkQueue queue = call.queue(to, 0);
  for (uint32_t number = 0; number < kReuses; ++number) {
    const uint32_t bytes = network_bytes(params.rank, to, number);
    write_message(source, bytes, params.rank, to, number);
    const NetworkTarget target =
        params.windows[to] + offsetof(NetworkWindow, reused) +
        (params.rank * kReuses + number) * sizeof(NetworkWindow::reused[0][0]);
    if (!queue.put(call.deadline, call.kPost, target, call.source(source, bytes))) return false;
    if (!queue.flush(call.deadline, call.kFlush)) return false;
  }
  const NetworkTarget flag =
      params.windows[to] + offsetof(NetworkWindow, reused_arrived) + params.rank * sizeof(uint64_t);
  return queue.signal(call.deadline, call.kPost, flag, kReuses);
}

TOKENYARD_DEVICE void network_reuse(const NetworkParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  const NetworkCall call{params, deadline};
  for (uint32_t to = 0; to < params.ranks; ++to) {
    if (call.is_far(to) && !send_reusing(call, to)) return;
  }
  uint32_t wrong = 0;
  for (uint32_t from = 0; from < params.ranks; ++from) {
    if (!call.is_far(from)) continue;
    if (!await_signal(deadline, call.kArrive, from, &params.mine->reused_arrived[from], kReuses))
      return;
    for (uint32_t number = 0; number < kReuses; ++number) {
      wrong += wrong_bytes(params.mine->reused[from][number],
                           network_bytes(from, params.rank, number), from, params.rank, number);
    }
  }
  if (wrong != 0) *params.wrong += wrong;
}

TOKENYARD_DEVICE SendRing send_ring(const NetworkCall& call, uint32_t to) {
  const NetworkParams& params = call.params;
  const NetworkTarget& window = params.windows[to];
  return {
      .queue = call.queue(to, 0),
      .slots =
          window + offsetof(NetworkWindow, ring) + params.rank * sizeof(NetworkWindow::ring[0]),
      .arrived = window + offsetof(NetworkWindow, ring_arrived) + params.rank * sizeof(uint64_t),
      .credited = &params.mine->ring_credited[to],
      .sent = &params.scratch->sent[to],
      .rank = to,
      .capacity = params.ring_slots,
      .slot_bytes = kRingSlotBytes};
}
TOKENYARD_DEVICE ReceiveRing receive_ring(const NetworkCall& call, uint32_t from) {
  const NetworkParams& params = call.params;
  return {.queue = call.queue(from, 1),
          .credited = params.windows[from] + offsetof(NetworkWindow, ring_credited) +
                      params.rank * sizeof(uint64_t),
          .slots = params.mine->ring[from],
          .arrived = &params.mine->ring_arrived[from],
          .taken = &params.scratch->taken[from],
          .rank = from,
          .capacity = params.ring_slots,
          .slot_bytes = kRingSlotBytes};
}

/// Sends a row and its metadata, from two places, as one slot, and every third slot from one place.
/// Two slots have sources of their own.
TOKENYARD_DEVICE bool send_slot(const NetworkCall& call, uint32_t to, uint32_t number) {
  const NetworkParams& params = call.params;
  const SendRing ring = send_ring(call, to);
  if (!ring.reserve(call.deadline, call.kCredit, 1)) return false;
  if (number % 2 == 0 && !ring.queue.flush(call.deadline, call.kFlush)) return false;
  uint8_t* const row = params.scratch->rows[to][number % 2];
  if (number % 3 == 2) {
    write_message(row, kRingSlotBytes, params.rank, to, number);
    return ring.send(call.deadline, call.kPost, 1, call.source(row, kRingSlotBytes));
  }
  uint8_t* const metadata = params.scratch->metadata[to][number % 2];
  const uint32_t row_bytes = kRingSlotBytes - kRingMetadataBytes;
  write_message(row, row_bytes, params.rank, to, number);
  write_message(metadata, kRingMetadataBytes, params.rank, to, number, row_bytes);
  return ring.queue.put(call.deadline, call.kPost, ring.slot(0), call.source(row, row_bytes),
                        call.source(metadata, kRingMetadataBytes)) &&
         ring.publish(call.deadline, call.kPost, 1);
}

/// Rings: block `rank` of the grid sends to that rank and block `ranks + rank` receives from it.
/// Receivers return as many slots at once as the capacity allows without a standstill.
TOKENYARD_DEVICE void network_rings(const NetworkParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  const NetworkCall call{params, deadline};
  const uint32_t peer = block::index() % params.ranks;
  if (!call.is_far(peer)) return;
  if (block::index() < params.ranks) {
    for (uint32_t number = 0; number < params.ring_messages; ++number) {
      if (!send_slot(call, peer, number)) return;
    }
    // All credits have come, so nothing of the peer is under way to this rank.
    send_ring(call, peer).reserve(deadline, call.kCredit, params.ring_slots);
    return;
  }
  const ReceiveRing ring = receive_ring(call, peer);
  uint32_t wrong = 0;
  for (uint32_t number = 0; number < params.ring_messages;) {
    const uint32_t left = params.ring_messages - number;
    const uint32_t most = number % 3 == 0 ? 1 : (params.ring_slots + 1) / 2;
    const uint32_t count = most < left ? most : left;
    if (!ring.await(deadline, call.kArrive, count)) return;
    for (uint32_t slot = 0; slot < count; ++slot) {
      wrong += wrong_bytes(reinterpret_cast<const uint8_t*>(ring.slot(slot)), kRingSlotBytes, peer,
                           params.rank, number + slot);
    }
    if (!ring.release(deadline, call.kPost, count)) return;
    number += count;
  }
  // Relaxed: the host reads the sum after the kernel.
  if (wrong != 0) add<Order::relaxed, Scope::gpu>(params.wrong, wrong);
}

/// Some equal requests as they are, then a flush.
struct RequestParams {
  WaitContext wait_context;
  NetworkQueues queues;
  uint32_t peer, queue, count;
  uint32_t apart_ns;  ///< from each post to the next
  NetworkRequest::Kind kind;
  NetworkTarget target;
  NetworkSource source;
  NetworkTarget flag;       ///< gets a signal behind them; no key: none
  NetworkTarget each_flag;  ///< gets a signal with each put; no key: none
  uint32_t flushes;
  uint64_t* took_ns;  ///< from the first post to the end of the flush
};

TOKENYARD_DEVICE bool post_request(const Deadline& deadline, const NetworkQueue& queue,
                                   const RequestParams& params) {
  constexpr auto kPost = static_cast<uint32_t>(NetworkPhase::post);
  switch (params.kind) {
    case NetworkRequest::Kind::signal:
      return queue.signal(deadline, kPost, params.target, 1);
    case NetworkRequest::Kind::put_inline:
      return queue.put_inline(deadline, kPost, params.target, params.source.from,
                              params.source.bytes);
    case NetworkRequest::Kind::put:
      break;
  }
  if (params.each_flag.key != 0)
    return queue.put_and_signal(deadline, kPost, params.target, params.source, params.each_flag, 1);
  return queue.put(deadline, kPost, params.target, params.source);
}

TOKENYARD_DEVICE void network_request(const RequestParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  const uint64_t begin = now_ns();
  constexpr auto kPost = static_cast<uint32_t>(NetworkPhase::post);
  const NetworkQueue queue = params.queues.of(params.peer, params.queue);
  for (uint32_t number = 0; number < params.count; ++number) {
    if (number != 0 && params.apart_ns != 0) nap(params.apart_ns);
    if (!post_request(deadline, queue, params)) return;
  }
  if (params.flag.key != 0 && !queue.signal(deadline, kPost, params.flag, 1)) return;
  if (params.flushes == 0) return;
  if (!queue.flush(deadline, static_cast<uint32_t>(NetworkPhase::flush))) return;
  *params.took_ns = now_ns() - begin;
}

struct AwaitParams {
  WaitContext wait_context;
  uint32_t rank;
  const uint64_t* word;
  uint64_t value;
};

TOKENYARD_DEVICE void network_await(const AwaitParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  (void)await_signal(deadline, static_cast<uint32_t>(NetworkPhase::arrive), params.rank,
                     params.word, params.value);
}

struct SharedParams {
  NetworkParams network;
  uint32_t from, to;  ///< the ranks that send to this one, and get from it
};
inline constexpr uint32_t kSharers = 4;  ///< warps, at most

/// A warp's messages, from one source, over a queue that others use at the same time.
TOKENYARD_DEVICE bool send_sharing(const NetworkCall& call, uint32_t to, uint32_t warp) {
  const NetworkParams& params = call.params;
  uint8_t* const source = params.scratch->sources[warp][0];
  const NetworkQueue queue = call.queue(to, 0);
  const NetworkTarget flag = params.windows[to] + offsetof(NetworkWindow, reused_arrived);
  for (uint32_t number = 0; number < kReuses; ++number) {
    const uint32_t name = warp * kReuses + number;
    const uint32_t bytes = network_bytes(params.rank, to, name);
    const uint32_t head = bytes < kNetworkInlineMax ? bytes : kNetworkInlineMax - number;
    write_message(source, bytes, params.rank, to, name);
    const NetworkTarget target = params.windows[to] + offsetof(NetworkWindow, reused) +
                                 name * sizeof(NetworkWindow::reused[0][0]);
    const bool sent = queue.put_inline(call.deadline, call.kPost, target, source, head) &&
                      queue.put_and_signal(call.deadline, call.kPost, target + head,
                                           call.source(source + head, bytes - head), flag, 1) &&
                      queue.flush(call.deadline, call.kFlush);
    if (!sent) return false;
  }
  return true;
}

/// Sharing: every warp of the grid posts to one queue; the first one then looks at what has come.
TOKENYARD_DEVICE void network_shared(const SharedParams& shared) {
  if (warp::lane() != 0) return;
  const NetworkParams& params = shared.network;
  const Deadline deadline = params.wait_context.start();
  const NetworkCall call{params, deadline};
  const uint32_t warp = block::index() * warp::count() + warp::index();
  if (!send_sharing(call, shared.to, warp) || warp != 0) return;
  const uint32_t messages = grid::blocks() * warp::count() * kReuses;
  if (!await_signal(deadline, call.kArrive, shared.from, &params.mine->reused_arrived[0], messages))
    return;
  uint32_t wrong = 0;
  for (uint32_t name = 0; name < messages; ++name) {
    wrong +=
        wrong_bytes(params.mine->reused[name / kReuses][name % kReuses],
                    network_bytes(shared.from, params.rank, name), shared.from, params.rank, name);
  }
  if (wrong != 0) *params.wrong += wrong;
}

// Defined in network_kernel_definitions.hpp, which one file per program includes.
TOKENYARD_DECLARE_KERNEL(network_shared_kernel, SharedParams);
TOKENYARD_DECLARE_KERNEL(network_exchange_kernel, NetworkParams);
TOKENYARD_DECLARE_KERNEL(network_reuse_kernel, NetworkParams);
TOKENYARD_DECLARE_KERNEL(network_rings_kernel, NetworkParams);
TOKENYARD_DECLARE_KERNEL(network_request_kernel, RequestParams);
TOKENYARD_DECLARE_KERNEL(network_await_kernel, AwaitParams);

}  // namespace tokenyard::testing
