/// Exercises a fabric without load/store: puts of any length and signals, in order.
#pragma once

#include <cstddef>

#include "device/device.hpp"
#include "fabric/network/queue_pair.hpp"

namespace tokenyard::testing {

inline constexpr uint32_t kNetworkRanks = 8;  ///< at most
inline constexpr uint32_t kPieceBytes = 100;  ///< at most

struct NetworkWindow {
  alignas(16) uint8_t pieces[2][kNetworkRanks][kPieceBytes];  ///< [epoch parity][source rank]
  uint32_t arrived[kNetworkRanks];                            ///< [source rank] epochs
};

enum class NetworkPhase : uint32_t { post, arrive, flush };

struct NetworkParams {
  WaitContext wait_context;
  QueuePair* const* queues;  ///< [ranks]
  const uint64_t* windows;   ///< [ranks] offsets in their arenas
  NetworkWindow* mine;
  uint8_t* source;  ///< [ranks][kPieceBytes] of this rank
  uint32_t rank, ranks, epoch;
  uint32_t* wrong;
};

TOKENYARD_DEVICE uint8_t network_byte(uint32_t from, uint32_t to, uint32_t epoch, uint32_t byte) {
  return static_cast<uint8_t>(from * 31 + to * 17 + epoch * 7 + byte);
}

TOKENYARD_DEVICE uint32_t network_bytes(uint32_t from, uint32_t epoch) {
  return 1 + (from * 13 + epoch * 29) % kPieceBytes;
}

TOKENYARD_DEVICE void network_send(const NetworkParams& params, const Deadline& deadline,
                                   uint32_t to) {
  uint8_t* const piece = params.source + to * kPieceBytes;
  const uint32_t bytes = network_bytes(params.rank, params.epoch);
  for (uint32_t byte = 0; byte < bytes; ++byte) {
    piece[byte] = network_byte(params.rank, to, params.epoch, byte);
  }
  const uint64_t window = params.windows[to];
  const uint64_t place = params.epoch % 2 * kNetworkRanks + params.rank;
  const uint64_t row = window + offsetof(NetworkWindow, pieces) + place * kPieceBytes;
  const uint64_t flag = window + offsetof(NetworkWindow, arrived) + params.rank * sizeof(uint32_t);
  const NetworkQueue queue(params.queues[to], to);
  const auto post = static_cast<uint32_t>(NetworkPhase::post);
  // In two puts, so that the signal must cover more than one.
  queue.put(deadline, post, row, piece, bytes / 2);
  queue.put(deadline, post, row + bytes / 2, piece + bytes / 2, bytes - bytes / 2);
  queue.signal(deadline, post, flag, 1);
}

/// Every rank sends a piece to every far rank, and checks the pieces that it receives.
TOKENYARD_DEVICE void network_exchange(const NetworkParams& params) {
  const Deadline deadline = params.wait_context.start();
  if (thread::index() != 0) return;
  for (uint32_t to = 0; to < params.ranks; ++to) {
    if (params.queues[to] != nullptr) network_send(params, deadline, to);
  }
  uint32_t wrong = 0;
  for (uint32_t from = 0; from < params.ranks; ++from) {
    if (params.queues[from] == nullptr) continue;
    Awaited what{.phase = static_cast<uint32_t>(NetworkPhase::arrive),
                 .rank = from,
                 .expected = params.epoch};
    const bool came = wait_until(deadline, what, [&] {
      what.seen = load<Order::acquire, Scope::sys>(&params.mine->arrived[from]);
      return what.seen >= what.expected;
    });
    if (!came) return;
    const uint8_t* const piece = params.mine->pieces[params.epoch % 2][from];
    for (uint32_t byte = 0; byte < network_bytes(from, params.epoch); ++byte) {
      wrong += piece[byte] != network_byte(from, params.rank, params.epoch, byte);
    }
  }
  for (uint32_t to = 0; to < params.ranks; ++to) {
    if (params.queues[to] == nullptr) continue;
    const NetworkQueue queue(params.queues[to], to);
    queue.flush(deadline, static_cast<uint32_t>(NetworkPhase::flush));
  }
  if (wrong != 0) *params.wrong += wrong;
}

TOKENYARD_DEFINE_KERNEL(network_exchange_kernel, network_exchange, NetworkParams, NoShared, 32)

}  // namespace tokenyard::testing
