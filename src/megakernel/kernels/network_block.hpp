/// The tables of a rank's network block: its messages, and the words that far ranks signal. The
/// protocol is in network_block_kernel.hpp.
#pragma once

#include "device/network.hpp"

namespace tokenyard::megakernel {

/// A piece of a message: bytes of a mirror, put to the bytes that they mirror.
struct FarPut {
  NetworkSource source;
  NetworkTarget target;
};

/// A signal of a message, to the landing of the far rank.
struct FarSignal {
  NetworkTarget word;
  uint64_t count;
};

/// A message of one task to one far rank, sent once per iteration.
struct FarMessageRecord {
  uint32_t sent;  ///< the event of this rank that the task signals
  uint32_t
      read;  ///< the event of this rank to signal once the puts' sources were read, or kNoEvent
  uint32_t puts_at, puts;
  uint32_t signals_at, signals;
};

/// A message whose sources the network may still read.
struct UnreadMessage {
  uint32_t message;
  uint32_t ticket;  ///< number of its last request
};

/// The part of a peer's ring of UnreadMessage that is in use. Both only grow.
struct UnreadRing {
  uint32_t begin, end;
};

/// A far rank, and this rank's messages to it.
struct FarPeer {
  uint32_t rank;
  uint32_t messages_at, messages;
  uint32_t published;   ///< the event of this rank that every task signals that sends to the peer
  NetworkTarget ready;  ///< where this rank's FarReady lies in the far rank's landing
};

/// A rank's ready words, written by one far rank (run_params.hpp: how a run begins).
struct alignas(64) FarReady {
  uint64_t runs;     ///< that it has begun; signals alone write it
  Stamped words[2];  ///< by parity of the run: put before the signal of that run. The rank begins
                     ///< run r + 2 after this one has begun r + 1, so none is overwritten unread.
};

/// The memory of a rank that networks write.
///
///     FarReady [ranks] | signals [events], a line each, which signals alone write
struct LandingLayout {
  static constexpr uint32_t kLine = 64;
  uint32_t ranks = 0, events = 0;

  TOKENYARD_HOST_DEVICE size_t ready_at(uint32_t rank) const {
    return size_t{rank} * sizeof(FarReady);
  }
  TOKENYARD_HOST_DEVICE size_t signals_at(uint32_t event) const {
    return ready_at(ranks) + size_t{event} * kLine;
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return signals_at(events); }
};

struct NetworkBlockParams {
  uint32_t blocks;  ///< 1, the launch's last block; 0: no rank is far
  uint32_t peers;
  const FarPeer* far_peers;          ///< [peers]
  const FarMessageRecord* messages;  ///< by peer
  const FarPut* puts;
  const FarSignal* signals;
  // Counts go on over all runs.
  uint64_t* begun;           ///< [peers] runs that the peer has begun, as passed on
  uint64_t* handled;         ///< [peers] messages of `published` that were sent
  uint64_t* sent;            ///< [messages] iterations sent
  UnreadMessage* unread;     ///< [messages] a ring per peer, as long as it has messages
  UnreadRing* rings;         ///< [peers]
  const uint32_t* incoming;  ///< events that far ranks signal
  uint32_t incoming_count;
  uint64_t* taken;  ///< [incoming] signals passed on so far
  std::byte* landing;
  LandingLayout layout;
  NetworkQueues queues;
  uint32_t queue;  ///< number, at every peer
  uint64_t* left;  ///< workers that have left the run
};

}  // namespace tokenyard::megakernel
