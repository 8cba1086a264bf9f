/// A bounded queue in memory: many add or one does, one takes, and whoever finds it full waits.
///
///     tail:    tickets drawn
///     taken:   tickets whose values have been taken
///     slot s:  the last value put there, and one more than its lap
///
/// The ticket t is for slot t % slots in lap t / slots, once t < taken + slots. Zeroed memory is an
/// empty queue, all numbers only grow, and nothing is ever cleared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/apart.hpp"
#include "device/memory.hpp"
#include "device/peer.hpp"

namespace tokenyard::megakernel {

struct QueueLayout {
  uint32_t slots;

  static constexpr uint32_t kLine = 128;  ///< the tail's and taken's own
  HOST_DEVICE size_t bytes() const {
    return kLine + (slots * sizeof(Stamped) + kLine - 1) / kLine * kLine;
  }
};

class Queue {
 public:
  DEVICE Queue(Peer<std::byte> base, uint32_t slots) : base_(base), slots_(slots) {}

  /// By one thread. False if the deadline has passed, or the run has failed. Release: whoever takes
  /// the value knows what this thread knew.
  template <Scope scope>
  DEVICE bool push(const DeadlineApart& deadline, Awaited& what, uint32_t value) const {
    // Acquire: see `put`. Relaxed: the ticket only says which slot.
    uint64_t taken = load<Order::acquire, scope>(taken_word());
    const uint64_t ticket = fetch_add<Order::relaxed, scope>(tail_word(), 1);
    return put<scope>(deadline, what, ticket, taken, value);
  }
  /// As push, in a queue to which one block alone adds, with a ticket that it has drawn itself.
  /// `taken`: what is known of that word by an acquire, and becomes more if that was too little.
  template <Scope scope>
  DEVICE bool put(const DeadlineApart& deadline, Awaited& what, uint64_t ticket, uint64_t& taken,
                  uint32_t value) const {
    what.expected = ticket + 1 - (ticket < slots_ ? ticket + 1 : slots_);
    // Acquire, of what `free` releases: only so is the slot's last value, which the taker has read,
    // before ours in the order of its memory. Otherwise ours could be the one that is overwritten.
    if (taken < what.expected && !wait_until(deadline, what, [&] {
          what.seen = taken = load<Order::acquire, scope>(taken_word());
          return taken >= what.expected;
        }))
      return false;
    store<Order::release, scope>(slot_of(ticket), Stamped{stamp_of(ticket), value});
    return true;
  }

  /// By the one thread that takes: whether the value of ticket `head` has come, and which. Acquire.
  template <Scope scope>
  DEVICE bool peek(uint64_t head, uint32_t& value) const {
    const Stamped found = load<Order::acquire, scope>(slot_of(head));
    value = found.value;
    return found.epoch == stamp_of(head);
  }
  /// The value has been peeked at: its slot is free for the next lap. Release, for `put`.
  template <Scope scope>
  DEVICE void free(uint64_t head) const {
    store<Order::release, scope>(taken_word(), head + 1);
  }

 private:
  DEVICE Peer<uint64_t> tail_word() const { return base_.as<uint64_t>(); }
  DEVICE Peer<uint64_t> taken_word() const { return base_.as<uint64_t>() + 1; }
  DEVICE Peer<Stamped> slot_of(uint64_t ticket) const {
    return (base_ + QueueLayout::kLine).as<Stamped>() + ticket % slots_;
  }
  DEVICE uint32_t stamp_of(uint64_t ticket) const {
    return static_cast<uint32_t>(ticket / slots_) + 1;
  }

  Peer<std::byte> base_;
  uint32_t slots_;
};

}  // namespace tokenyard::megakernel
