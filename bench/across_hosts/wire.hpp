/// The network of one real rank, and its peers: a thread that takes the rank's requests, lets bytes
/// leave and arrive at the rate of a link, and returns credits as peers would.
///
///     rank 0's puts     -> the wire out, in the order of posting -> the card reads the stage
///                          -> later, the peer's credit
///     the peers' slots  -> the wire in, peers in turn, as far as rank 0's credits let them
///                          -> the card writes the ring, then the word that tells how many came
///
/// The peers are as fast as rank 0: they begin with its first put.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "bench/across_hosts/card.hpp"
#include "device/network_request.hpp"

namespace tokenyard::bench {

/// Bytes that the card copies, and a word behind them.
struct Move {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t bytes = 0;
  void* word = nullptr;
  uint64_t value = 0;
  uint32_t word_bytes = 8;
};

/// Has moves done in the order of each group; on a GPU by the card's blocks.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual void issue(uint32_t group, const Move& move) = 0;
  /// Returns the moves of a group that are done.
  virtual uint32_t done(uint32_t group) const = 0;
};

/// The traffic of a link in a call.
struct LinkTraffic {
  QueuePair *fill = nullptr, *drain = nullptr;  ///< rank 0's queues to the peer
  uint32_t slots_out = 0, slots_in = 0, capacity = 0, chunk = 0, slot_bytes = 0;
  uint64_t first_out = 0, first_in = 0;  ///< positions in the rings when the call begins
  const std::byte* stage = nullptr;
  std::byte* ring = nullptr;
  const std::byte* inbox = nullptr;  ///< [slots_in] what the peer sends
  std::byte* outbox = nullptr;       ///< [slots_out] what has left
  Move greeting = {};                ///< of the peer, with its word
  uint64_t* arrived = nullptr;       ///< rank 0's words
  uint64_t* credited = nullptr;
};

struct CallTraffic {
  std::vector<LinkTraffic> links;
  /// Words of other ranks of the host, and those that they pass on: stored once rank 0 has greeted
  /// its peers, and a latency after that.
  std::vector<Move> words, words_later;
  std::vector<Move> finished;  ///< the other ranks' last words
  double gb_s = 50;            ///< each way; 0: unpaced
  double latency_us = 3,
         credit_us = 10;  ///< credit_us: from a slot's end on the wire to its credit
};

struct WireOutcome {
  uint64_t wrong = 0;  ///< requests that were not as they should be
  uint64_t puts = 0;
  uint32_t first_slots = 0;  ///< most slots of any link's first put
  double bytes_out = 0, bytes_in = 0;
  double idle_out_us = 0, idle_in_us = 0;  ///< after the first slot, until the last
  double out_us = 0, in_us = 0;            ///< from the first slot to the last, each way
  // By Wire::now_us, 0 if there was none.
  double greeted_at_us = 0;      ///< rank 0's first greeting left
  double last_slot_at_us = 0;    ///< the last slot came to rank 0
  double last_credit_at_us = 0;  ///< rank 0's last credit left
  bool complete = false;
};

/// Plays one call on a thread of its own, from construction to `end`.
class Wire {
 public:
  /// Groups: out and in of each link, then one for words.
  Wire(const CallTraffic& traffic, Mover& mover)
      : traffic_(traffic), mover_(mover), thread_([this] { play(); }) {
    while (!ready_.load()) std::this_thread::yield();
  }
  ~Wire() { stops_ = true; }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  /// Stops the thread.
  WireOutcome end();
  /// Returns the time of the clock that the outcome's times are of.
  static double now_us();

 private:
  void play();

  const CallTraffic& traffic_;
  Mover& mover_;
  WireOutcome outcome_;
  std::atomic<bool> ready_ = false, stops_ = false;
  std::jthread thread_;
};

}  // namespace tokenyard::bench
