/// The network cards of all ranks, and the links between them, in virtual time.
///
///     a queue's requests, in order -> its card, which serves queues in turns of a burst
///     -> the outgoing link -> latency -> the peer's incoming link -> memory
///
/// A source is read when its turn on the link comes, and told as read a completion later. A signal
/// lands after the puts before it. The card begins a message every 100 ns, and goes on doing so
/// while earlier ones occupy the link.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "bench/across_hosts_model/events.hpp"
#include "device/network.hpp"
#include "fabric/arena.hpp"
#include "fabric/network/network.hpp"

namespace tokenyard::bench {

class Wire {
 public:
  Wire(uint32_t ranks, uint32_t queues_per_peer, const Costs& costs);

  /// Makes a rank's end, for a World.
  std::shared_ptr<Network> network(const NetworkPlace& place);

  /// Tells where a rank's memory lies.
  void set_arena(uint32_t rank, std::byte* base, size_t bytes) {
    arenas_[rank] = base;
    arena_bytes_[rank] = bytes;
  }
  /// Returns a rank's queue: those of peer 0 first.
  QueuePair& pair(uint32_t rank, uint32_t number) {
    return pairs_[rank * queues_of_rank_ + number];
  }

  /// Prepares for a call. `rates`: [ranks] share of the full rate; empty: all of it.
  /// Calls `changed(word, at)` when a word has changed.
  using Changed = std::function<void(const void* word, Time at)>;
  void begin(Events& events, const Lengths& lengths, const std::vector<double>& rates,
             Changed changed);
  /// Returns whether a store posted requests, which the card then takes from `at` on.
  bool note_post(const void* word, Time at);

  uint32_t ranks() const { return ranks_; }
  std::byte* arena(uint32_t rank) const { return arenas_[rank]; }
  size_t arena_bytes(uint32_t rank) const { return arena_bytes_[rank]; }
  /// Bytes of a rank's call on its link, without headers.
  double bytes_out(uint32_t rank) const { return cards_[rank].out; }
  double bytes_in(uint32_t rank) const { return cards_[rank].in; }
  uint64_t messages(uint32_t rank) const { return cards_[rank].messages; }
  /// When the first put of slots began on the link, and the last ended.
  Time first_put(uint32_t rank) const { return cards_[rank].first_put; }
  /// When the last slots have come.
  Time last_slots(uint32_t rank) const { return cards_[rank].last_slots; }

 private:
  struct Queue {
    QueuePair* pair;
    uint32_t seen = 0;       ///< requests of whose post the card knows
    uint32_t taken = 0;      ///< requests that are on the link, or have been
    std::deque<Time> begun;  ///< when the card has begun those that it knows and has not taken
    double left = 0;         ///< bytes of the request under way that have not gone
    bool under_way = false;
    Time landed = 0;  ///< when the puts so far have landed
    Time read = 0;
  };
  struct Card {
    Time begun = 0;  ///< when it has begun the last message that it knows
    Time in_free = 0;
    bool busy = false;
    std::deque<uint32_t> waiting;  ///< queues with requests, in turn
    std::vector<bool> waits;
    double out = 0, in = 0, rate = 1;
    uint64_t messages = 0;
    Time first_put = 0, last_slots = 0;
  };

  void serve(uint32_t rank, Time now);
  void land(const NetworkRequest& request, uint32_t peer, std::vector<std::byte> bytes, Time at);

  const uint32_t ranks_, queues_per_peer_, queues_of_rank_;
  const Costs& costs_;
  std::vector<QueuePair> pairs_;  ///< [ranks][ranks][queues_per_peer]
  std::vector<QueueEnd> ends_;
  std::vector<MemoryKey> keys_;
  std::vector<std::byte*> arenas_;
  std::vector<size_t> arena_bytes_;
  std::vector<Queue> queues_;
  std::vector<Card> cards_;
  Events* events_ = nullptr;
  Changed changed_;
  Lengths lengths_;
};

}  // namespace tokenyard::bench
