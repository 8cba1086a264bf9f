/// A bounded queue in memory: the threads of one block add, one takes, and whoever finds it full
/// waits.
///
///     taken:   tickets whose values have been taken
///     slot s:  the last value put there, and one more than its ticket
///
/// The ticket t is for slot t % slots, once t < taken + slots. Zeroed memory is an empty queue, all
/// numbers only grow, and nothing is ever cleared. There is a power of two of slots: a GPU has no
/// instruction that divides.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "device/apart.hpp"
#include "device/memory.hpp"
#include "device/peer.hpp"

namespace tokenyard::megakernel {

/// Tells a ticket from those of other laps, and the first from zeroed memory.
HOST_DEVICE uint32_t stamp_of(uint64_t ticket) {
  return static_cast<uint32_t>(ticket) + 1;
}

struct QueueLayout {
  uint32_t slots;  ///< a power of two

  /// With room for at least `wanted`.
  static QueueLayout of(uint32_t wanted) { return {std::bit_ceil(wanted)}; }
  static constexpr uint32_t kLine = 128;  ///< taken's own
  HOST_DEVICE size_t bytes() const {
    return kLine + (slots * sizeof(Stamped) + kLine - 1) / kLine * kLine;
  }
};

class Queue {
 public:
  DEVICE Queue(Peer<std::byte> base, uint32_t slots) : base_(base), slots_(slots) {}

  /// By one thread of the one block that adds to this queue, with a ticket that it has drawn
  /// itself, after a release fence: whoever takes the value knows what this thread knew. `taken`:
  /// what is known of that word by an acquire, and becomes more if that was too little.
  template <Scope scope>
  DEVICE bool put(const DeadlineApart& deadline, Awaited& what, uint64_t ticket, uint64_t& taken,
                  uint32_t value) const {
    what.expected = ticket + 1 - slots_;
    // It stores as soon as it may: lanes of a warp that wait may do so for one another's values.
    return wait_until(deadline, what, [&] {
      // Acquire, of what `free` releases: only so is the slot's last value, which the taker has
      // read, before ours in the order of its memory. Otherwise ours could be overwritten.
      if (ticket >= taken + slots_) what.seen = taken = load<Order::acquire, scope>(taken_word());
      if (ticket >= taken + slots_) return false;
      store<Order::relaxed, scope>(slot_of(ticket), Stamped{stamp_of(ticket), value});
      return true;
    });
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
  DEVICE Peer<uint64_t> taken_word() const { return base_.as<uint64_t>(); }
  DEVICE Peer<Stamped> slot_of(uint64_t ticket) const {
    return (base_ + QueueLayout::kLine).as<Stamped>() + (ticket & (slots_ - 1));
  }

  Peer<std::byte> base_;
  uint32_t slots_;
};

}  // namespace tokenyard::megakernel
