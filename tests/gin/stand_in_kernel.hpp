/// Stands in for GIN under the card: the simulated card of fabric/network/nic.hpp is the wire,
/// which delivers puts in any order before their signal, torn and late, reads sources as late as a
/// flush allows, and applies signals in any order.
#pragma once

#include "device/device.hpp"
#include "device/network.hpp"
#include "gin/card.hpp"
#include "gin/card_queue.hpp"

namespace tokenyard::gin::testing {

struct StandInParams {
  CardParams card;
  NetworkQueues wire;        ///< twice as many queues per peer: the later ones are for weak signals
  std::byte* const* arenas;  ///< [ranks]
  bool slow_flush;           ///< none ends in the card's first run, or at its first look later
  const uint32_t* cut;       ///< [ranks] nothing reaches these any more, if not 0; null: all do
};

class StandInGin {
 public:
  TOKENYARD_DEVICE StandInGin(const StandInParams& params, uint32_t queue)
      : params_(params),
        deadline_(params.card.wait_context.start()),
        rank_(params.card.pairs[queue]->peer),
        number_(params.card.pairs[queue]->number) {}

  TOKENYARD_DEVICE void put(const CardPeer&, uint64_t target, uint64_t source, uint64_t bytes) {
    if (is_cut()) return;
    (void)wire().put(deadline_, 0, {key(rank_), target},
                     NetworkSource{.key = key(params_.card.rank),
                                   .bytes = static_cast<uint32_t>(bytes),
                                   .from = params_.card.arena + source});
  }
  TOKENYARD_DEVICE void signal(const CardPeer&, uint64_t word, uint64_t addend, SignalKind kind) {
    if (is_cut()) return;
    const NetworkQueue queue = kind == SignalKind::strong ? wire() : weak_wire();
    (void)queue.signal(deadline_, 0, {key(rank_), word}, addend);
  }
  TOKENYARD_DEVICE bool signal_behind_all(const CardPeer& peer, uint64_t word, uint64_t addend) {
    if (!is_settled(number_) || !is_settled(weak_number())) return false;
    signal(peer, word, addend, SignalKind::strong);
    return true;
  }
  TOKENYARD_DEVICE void get(const CardPeer&, uint64_t word, uint64_t to) {
    const auto at = [](std::byte* arena, uint64_t offset) {
      return Peer<uint64_t>(reinterpret_cast<uint64_t*>(arena + offset));
    };
    if (is_cut()) return;
    // Acquires what the peer's word says.
    const uint64_t value = load<Order::acquire, Scope::sys>(at(params_.arenas[rank_], word));
    store<Order::relaxed, Scope::sys>(at(params_.card.arena, to), value);
    has_fetched_ = true;
  }
  TOKENYARD_DEVICE void begin_flush(const CardPeer&, bool after_get) {
    looks_too_briefly_ = has_fetched_ && !after_get;
    is_first_look_ = true;
    posted_ = wire().posted();
    weak_posted_ = weak_wire().posted();
  }
  TOKENYARD_DEVICE bool flushed() {
    const bool first = is_first_look_;
    is_first_look_ = false;
    const bool too_slow = params_.slow_flush && (first || params_.card.run <= 1);
    if (is_cut() || too_slow || looks_too_briefly_ || !wire().has_read(posted_) ||
        !weak_wire().has_read(weak_posted_))
      return false;
    has_fetched_ = false;
    return true;
  }

 private:
  TOKENYARD_DEVICE bool is_cut() const {
    // Relaxed: packets are lost at any time.
    return params_.cut != nullptr && load<Order::relaxed, Scope::sys>(params_.cut + rank_) != 0;
  }
  TOKENYARD_DEVICE MemoryKey key(uint32_t rank) const { return params_.wire.arena_keys[rank]; }
  TOKENYARD_DEVICE uint32_t weak_number() const { return number_ + params_.wire.per_peer / 2; }
  TOKENYARD_DEVICE NetworkQueue wire() const { return params_.wire.of(rank_, number_); }
  TOKENYARD_DEVICE NetworkQueue weak_wire() const { return params_.wire.of(rank_, weak_number()); }
  TOKENYARD_DEVICE bool is_settled(uint32_t number) const {
    const QueueEnd& end = params_.wire.ends[rank_ * params_.wire.per_peer + number];
    // Acquires what has landed.
    return load<Order::acquire, Scope::sys>(&end.pair->settled) == end.posted;
  }

  const StandInParams& params_;
  const Deadline deadline_;
  const uint32_t rank_, number_;
  uint32_t posted_ = 0, weak_posted_ = 0;
  bool has_fetched_ = false, looks_too_briefly_ = false, is_first_look_ = false;
};

TOKENYARD_DEVICE void stand_in_card(const StandInParams& params) {
  const uint32_t queue = block::index() * CardParams::kWarps + warp::index();
  if (warp::lane() != 0 || queue >= params.card.queues) return;
  StandInGin gin(params, queue);
  CardQueue<StandInGin>(params.card, queue, gin).work();
}

// Defined in the one file per program that also defines the contract's kernels.
TOKENYARD_DECLARE_KERNEL(stand_in_card_kernel, StandInParams);

}  // namespace tokenyard::gin::testing
