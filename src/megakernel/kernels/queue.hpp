/// A bounded queue in memory: the threads of one block add, one thread takes, and adding to a full
/// queue waits.
///
///     taken:   number of tickets whose values have been taken
///     slot s:  the last value put there, stamped with its ticket plus one
///
/// Ticket t is for slot t % slots, once t < taken + slots. Zeroed memory is an empty queue, all
/// numbers only grow, and nothing is ever cleared. The number of slots is a power of two, since a
/// GPU has no instruction for division.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "device/apart.hpp"
#include "device/memory.hpp"
#include "device/peer.hpp"

namespace tokenyard::megakernel {

/// Returns the stamp that distinguishes a ticket from those of other laps and from zeroed memory.
TOKENYARD_HOST_DEVICE uint32_t stamp_of(uint64_t ticket) {
  return static_cast<uint32_t>(ticket) + 1;
}

struct QueueLayout {
  uint32_t slots;  ///< a power of two

  /// Returns a layout for at least `wanted` values.
  static QueueLayout of(uint32_t wanted) { return {std::bit_ceil(wanted)}; }
  static constexpr uint32_t kLine = 128;  ///< bytes before the slots, for `taken` alone
  TOKENYARD_HOST_DEVICE size_t bytes() const {
    return kLine + (slots * sizeof(Stamped) + kLine - 1) / kLine * kLine;
  }
};

class Queue {
 public:
  TOKENYARD_DEVICE Queue(Peer<std::byte> base, uint32_t slots) : base_(base), slots_(slots) {}

  /// Puts a value, by one thread of the block that adds to this queue, with a ticket that it has
  /// drawn itself and after a release fence: the taker of the value sees everything that this
  /// thread saw. `taken`: a value of that word known by an acquire; updated if it was too small.
  template <Scope scope>
  TOKENYARD_DEVICE bool put(const DeadlineApart& deadline, Awaited& what, uint64_t ticket,
                            uint64_t& taken, uint32_t value) const {
    what.expected = ticket + 1 - slots_;
    // Stores as soon as possible: lanes of a warp may be waiting for each other's values.
    return wait_until(deadline, what, [&] {
      // Acquire, pairs with the release of `free`: it orders the taker's read of the slot's last
      // value before our store. Otherwise ours could be overwritten.
      if (ticket >= taken + slots_) what.seen = taken = load<Order::acquire, scope>(taken_word());
      if (ticket >= taken + slots_) return false;
      store<Order::relaxed, scope>(slot_of(ticket), Stamped{stamp_of(ticket), value});
      return true;
    });
  }

  /// Returns whether the value of ticket `head` has arrived, and the value. Acquire. Called by the
  /// one thread that takes.
  template <Scope scope>
  TOKENYARD_DEVICE bool peek(uint64_t head, uint32_t& value) const {
    const Stamped found = load<Order::acquire, scope>(slot_of(head));
    value = found.value;
    return found.epoch == stamp_of(head);
  }
  /// Frees the slot of a value that has been peeked at, for the next lap. Release, for `put`.
  template <Scope scope>
  TOKENYARD_DEVICE void free(uint64_t head) const {
    store<Order::release, scope>(taken_word(), head + 1);
  }

 private:
  TOKENYARD_DEVICE Peer<uint64_t> taken_word() const { return base_.as<uint64_t>(); }
  TOKENYARD_DEVICE Peer<Stamped> slot_of(uint64_t ticket) const {
    return (base_ + QueueLayout::kLine).as<Stamped>() + (ticket & (slots_ - 1));
  }

  Peer<std::byte> base_;
  uint32_t slots_;
};

}  // namespace tokenyard::megakernel
