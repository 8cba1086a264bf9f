/// The two coordinators of a link's rings, a thread per link and direction.
///
///     movers: written[slot] (release)  ->  RingFiller: puts, then the signal ->  peer: arrived
///     movers: read[slot] (release)     ->  RingDrainer: the credit           ->  peer: credited
///     peer: its signal of slots        ->  RingDrainer: passes it on         ->  movers:
///     has_arrived
///
/// Movers do not look at the network's words, which may lie across PCIe: many warps that polled one
/// there held up all rows (H200: 27 ms for 4096 tokens on 8 multiprocessors, 120 on 24).
///
/// A position p of a stage may be written again once p is below `reusable` + capacity: the network
/// has read it. The same slot of the peer's ring is free once its credit has come.
#pragma once

#include "device/unroll.hpp"
#include "expert_parallel/internode/kernels/rail_call_kernel.hpp"

namespace tokenyard::internode {

TOKENYARD_DEVICE SendRing send_ring(const RailCall& call, uint32_t link) {
  const Link& to = call.rails.links[link];
  const WindowLayout& layout = call.rails.layout;
  return {.queue = call.rails.queues.of(to.rank, call.rails.fill_queue),
          .slots = to.rings + layout.ring(to.there),
          .arrived = to.window + layout.arrived(to.there),
          .credited = call.rails.mine<uint64_t>(layout.credited(link)),
          .sent = &call.rails.tables.counts(link).sent,
          .rank = to.rank,
          .capacity = call.rails.capacity,
          .slot_bytes = call.rails.slot.bytes()};
}

TOKENYARD_DEVICE ReceiveRing receive_ring(const RailCall& call, uint32_t link) {
  const Link& from = call.rails.links[link];
  const WindowLayout& layout = call.rails.layout;
  return {.queue = call.rails.queues.of(from.rank, call.rails.drain_queue),
          .credited = from.window + layout.credited(from.there),
          .slots = call.rails.rings + layout.ring(link),
          .arrived = call.rails.mine<uint64_t>(layout.arrived(link)),
          .taken = &call.rails.tables.counts(link).taken,
          .rank = from.rank,
          .capacity = call.rails.capacity,
          .slot_bytes = call.rails.slot.bytes()};
}

/// Returns a position's slot in a link's stage.
TOKENYARD_DEVICE std::byte* stage_slot(const RailCall& call, uint32_t link, uint64_t position) {
  return call.rails.mine<std::byte>(call.rails.layout.stage(link)) +
         position % call.rails.capacity * call.rails.slot.bytes();
}
TOKENYARD_DEVICE const std::byte* ring_slot(const RailCall& call, uint32_t link,
                                            uint64_t position) {
  return call.rails.rings + call.rails.layout.ring(link) +
         position % call.rails.capacity * call.rails.slot.bytes();
}

/// Returns whether the stage has a place for a position. Acquires the network's reads.
TOKENYARD_DEVICE bool has_stage(const RailCall& call, uint32_t link, uint64_t position) {
  const uint64_t* const reusable = &call.rails.tables.counts(link).reusable;
  return position < load<Order::acquire, Scope::gpu>(reusable) + call.rails.capacity;
}
/// Waits until it has. Called by a thread that will write it.
TOKENYARD_DEVICE bool await_stage(const RailCall& call, uint32_t link, uint64_t position) {
  return call.await_own(Phase::stage, [&] { return has_stage(call, link, position); });
}
/// Hands a written slot to the coordinator. Release: orders its bytes before the mark.
TOKENYARD_DEVICE void mark_written(const RailCall& call, uint32_t link, uint64_t position) {
  store<Order::release, Scope::gpu>(
      call.rails.tables.written(link) + position % call.rails.capacity, position + 1);
}
/// Gives a slot of a ring back. Release: orders the reads before the mark.
TOKENYARD_DEVICE void mark_read(const RailCall& call, uint32_t link, uint64_t position) {
  store<Order::release, Scope::gpu>(call.rails.tables.read(link) + position % call.rails.capacity,
                                    position + 1);
}

/// Returns how many slots of a ring have come since the exchange was made. Acquires their bytes.
TOKENYARD_DEVICE uint64_t has_arrived(const RailCall& call, uint32_t link) {
  return load<Order::acquire, Scope::gpu>(&call.rails.tables.counts(link).arrived);
}

/// Returns how many slots from `position` on carry their marks, at most `most`. Loads several marks
/// at once: one after the other takes 0.65 us each, and eight at once were slower than FP8 rows on
/// a link of one peer.
TOKENYARD_DEVICE uint32_t marked(const uint64_t* marks, uint64_t position, uint32_t most,
                                 uint32_t capacity) {
  constexpr uint32_t kAtOnce = 16;
  auto at = static_cast<uint32_t>(position % capacity);
  uint32_t run = 0;
  for (bool goes_on = true; goes_on && run < most;) {
    uint64_t seen[kAtOnce] = {};
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (run + i >= most) continue;
      // Relaxed: the fence below follows the last one.
      seen[i] = load<Order::relaxed, Scope::gpu>(marks + at);
      at = at + 1 == capacity ? 0 : at + 1;
    }
    const uint64_t first = position + run + 1;
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      goes_on = goes_on && seen[i] == first + i;
      if (goes_on) ++run;
    }
  }
  // Acquires the slots' bytes, or the end of their reads.
  if (run != 0) fence_acquire<Scope::gpu>();
  return run;
}

/// The time for which a thread waited for its peer, found between its polls.
class PeerWait {
 public:
  TOKENYARD_DEVICE void note(bool for_peer) {
    if (for_peer == (since_ns_ != 0)) return;
    const uint64_t now = now_ns();
    if (!for_peer) waited_ns_ += now - since_ns_;
    since_ns_ = for_peer ? now : 0;
  }
  TOKENYARD_DEVICE uint64_t ns() const { return waited_ns_; }

 private:
  uint64_t since_ns_ = 0, waited_ns_ = 0;
};

/// A link's out ring during a call, as the only thread that fills it.
class RingFiller {
 public:
  TOKENYARD_DEVICE RingFiller(const RailCall& call, uint32_t link, uint32_t slots)
      : call_(call),
        link_(link),
        ring_(send_ring(call, link)),
        counts_(call.rails.tables.counts(link)),
        end_(counts_.first_out + slots),
        noted_(counts_.first_out),
        watched_(noted_) {}

  /// Puts all slots of the call as they are written. Returns once nothing of them is under way, or
  /// false if the call has failed.
  TOKENYARD_DEVICE bool fill() {
    const Deadline& deadline = call_.far_deadline;
    while (*ring_.sent != end_) {
      const uint32_t slots = await_slots();
      if (slots == 0 || !put(slots)) return false;
    }
    // Credits first: once they are all here, the peer may have left.
    if (!ring_.reserve(deadline, static_cast<uint32_t>(Phase::credits), ring_.capacity) ||
        !await_network())
      return false;
    // Release: passes the network's reads on to those who write the stage next.
    store<Order::release, Scope::gpu>(&counts_.reusable, end_);
    count_link(call_, link_, RailStatistics::sent_bytes,
               (end_ - counts_.first_out) * ring_.slot_bytes);
    count_link(call_, link_, RailStatistics::credits_ns, waits_.ns());
    return true;
  }

 private:
  /// Waits until this rank's own network has read all that was put. The peer's goodbye does not end
  /// it, as it would a flush.
  TOKENYARD_DEVICE bool await_network() {
    const uint32_t posted = ring_.queue.posted();
    Awaited what{.phase = static_cast<uint32_t>(Phase::flush),
                 .rank = ring_.rank,
                 .expected = posted,
                 .from_rank = false};
    return wait_until(call_.far_deadline, what, [&] { return ring_.queue.has_read(posted); });
  }

  /// Waits until some slots can be put; returns their number, or 0 if the call has failed.
  TOKENYARD_DEVICE uint32_t await_slots() {
    Awaited what{.rank = ring_.rank};
    uint32_t slots = 0, polls = 0;
    bool for_peer = false;
    wait_until(
        what,
        [&] {
          note_read();
          const uint64_t sent = *ring_.sent, at = sent % ring_.capacity;
          const auto most = static_cast<uint32_t>(
              std::min<uint64_t>({call_.rails.put_slots, end_ - sent, ring_.capacity - at}));
          const uint32_t least = std::min(call_.rails.chunk, most);
          const uint32_t free = ring_.free_slots();
          for_peer = free < least;
          waits_.note(for_peer);
          what.phase = static_cast<uint32_t>(for_peer ? Phase::credits : Phase::written);
          what.expected = sent + least;
          what.seen = sent + free;
          if (for_peer) return false;
          slots =
              marked(call_.rails.tables.written(link_), sent, std::min(most, free), ring_.capacity);
          if (slots < least) slots = 0;
          return slots != 0;
        },
        // Only a wait for the peer has a deadline: written slots come from this rank's own warps.
        [&] {
          if (!for_peer) return !call_.far_deadline.failed();
          return !call_.far_deadline.give_up(++polls, what);
        });
    return slots;
  }

  TOKENYARD_DEVICE bool put(uint32_t slots) {
    const NetworkSource source{.key = call_.rails.key,
                               .bytes = slots * ring_.slot_bytes,
                               .from = stage_slot(call_, link_, *ring_.sent)};
    return ring_.send(call_.far_deadline, static_cast<uint32_t>(Phase::put), slots, source);
  }

  /// Lets stage places be written again that the network has read. Never waits: one group of puts
  /// is watched at a time, and the next one is all that was posted meanwhile.
  TOKENYARD_DEVICE void note_read() {
    if (watched_ != noted_ && ring_.queue.has_read(ticket_)) {
      noted_ = watched_;
      // Release: passes the network's reads on to those who write the stage next.
      store<Order::release, Scope::gpu>(&counts_.reusable, noted_);
    }
    if (watched_ != noted_ || *ring_.sent == noted_) return;
    watched_ = *ring_.sent;
    ticket_ = ring_.queue.posted();
  }

  const RailCall& call_;
  const uint32_t link_;
  const SendRing ring_;
  LinkCounts& counts_;
  const uint64_t end_;
  uint64_t noted_;    // Position before which the network has read all slots.
  uint64_t watched_;  // Position before which slots were posted up to `ticket_`.
  uint32_t ticket_ = 0;
  PeerWait waits_;
};

/// A link's in ring during a call, as the only thread that drains it. It alone waits for the peer:
/// movers that did so would all look at the host's abort flag, across PCIe.
class RingDrainer {
 public:
  TOKENYARD_DEVICE RingDrainer(const RailCall& call, uint32_t link, uint32_t slots)
      : call_(call),
        link_(link),
        ring_(receive_ring(call, link)),
        counts_(call.rails.tables.counts(link)),
        end_(counts_.first_in + slots),
        arrived_(counts_.first_in) {}

  /// Tells the movers of slots as they come, and gives them back as they are read. `phase` names
  /// the wait for slots. Returns false if the call has failed.
  TOKENYARD_DEVICE bool drain(Phase phase) {
    while (*ring_.taken != end_) {
      const uint32_t slots = await_reads(phase);
      if (slots == 0 ||
          !ring_.release(call_.far_deadline, static_cast<uint32_t>(Phase::credit_put), slots))
        return false;
    }
    count_link(call_, link_, RailStatistics::arrived_bytes,
               (end_ - counts_.first_in) * ring_.slot_bytes);
    count_link(call_, link_, RailStatistics::slots_ns, waits_.ns());
    return true;
  }

 private:
  /// Waits until some slots have been read; returns their number, or 0 if the call has failed.
  TOKENYARD_DEVICE uint32_t await_reads(Phase phase) {
    const uint64_t taken = *ring_.taken;
    const auto most = static_cast<uint32_t>(std::min<uint64_t>(ring_.capacity, end_ - taken));
    const uint32_t least = std::min(call_.rails.chunk, most);
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = ring_.rank};
    uint32_t slots = 0, polls = 0;
    wait_until(
        what,
        [&] {
          pass_on_arrivals();
          slots = marked(call_.rails.tables.read(link_), taken, most, ring_.capacity);
          if (slots < least) slots = 0;
          waits_.note(slots == 0 && arrived_ < taken + least);
          what.expected = arrived_ + 1;
          what.seen = arrived_;
          return slots != 0;
        },
        // Only a wait for the peer has a deadline: slots that have come are this rank's to read.
        [&] {
          const bool for_peer = arrived_ < taken + least;
          if (!for_peer) return !call_.far_deadline.failed();
          return !call_.far_deadline.give_up(++polls, what);
        });
    return slots;
  }

  TOKENYARD_DEVICE void pass_on_arrivals() {
    if (arrived_ == end_) return;
    // Relaxed: the marks' loads need not wait for it. The fence acquires the slots' bytes.
    const uint64_t seen = load<Order::relaxed, Scope::sys>(ring_.arrived);
    if (seen == arrived_) return;
    fence_acquire<Scope::sys>();
    arrived_ = seen;
    // Release: passes them on.
    store<Order::release, Scope::gpu>(&counts_.arrived, arrived_);
  }

  const RailCall& call_;
  const uint32_t link_;
  const ReceiveRing ring_;
  LinkCounts& counts_;
  const uint64_t end_;
  uint64_t arrived_;
  PeerWait waits_;
};

/// Gives slots of a refused call back as they arrive, unread: their source may have cut the ring
/// into slots of another size. Returns false if the call has failed. Called by one thread.
TOKENYARD_DEVICE bool drop_slots(const RailCall& call, uint32_t link, uint32_t slots) {
  const ReceiveRing ring = receive_ring(call, link);
  const uint64_t end = call.rails.tables.counts(link).first_in + slots;
  while (*ring.taken != end) {
    const uint64_t taken = *ring.taken;
    constexpr auto kSlots = static_cast<uint32_t>(Phase::slots);
    if (!await_signal(call.far_deadline, kSlots, ring.rank, ring.arrived, taken + 1)) return false;
    const uint64_t arrived = load<Order::acquire, Scope::sys>(ring.arrived);
    if (!ring.release(call.far_deadline, static_cast<uint32_t>(Phase::credit_put),
                      static_cast<uint32_t>(arrived - taken)))
      return false;
  }
  return true;
}

/// Calls `body(link)` on the lane of each link that this block coordinates.
template <class Body>
TOKENYARD_DEVICE void each_own_link(const RailCall& call, Body body) {
  const uint32_t link = warp::lane() * grid::blocks() + block::index();
  for (uint32_t own = link; own < call.links(); own += kWarpLanes * grid::blocks()) body(own);
}

}  // namespace tokenyard::internode
