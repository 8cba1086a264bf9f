/// A bounded queue in memory: many add, one takes, and whoever finds it full waits.
///
///     tail:    tickets drawn
///     slot s:  lap L and whether it holds something: 2 L free, 2 L + 1 filled
///
/// The ticket t is for slot t % slots in lap t / slots. Zeroed memory is an empty queue, laps only
/// grow, and nothing is ever cleared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/apart.hpp"
#include "device/memory.hpp"
#include "device/peer.hpp"

namespace tokenyard::megakernel {

struct QueueLayout {
  uint32_t slots;

  static constexpr uint32_t kLine = 128;  ///< the tail's own
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
    // Relaxed: the ticket only says which slot.
    const uint64_t ticket = fetch_add<Order::relaxed, scope>(base_.as<uint64_t>(), 1);
    const auto lap = static_cast<uint32_t>(ticket / slots_);
    const Peer<Stamped> slot = slot_of(ticket);
    what.expected = 2 * lap;
    // Acquire: what was there has been read before we write over it.
    if (!wait_until(deadline, what, [&] {
          what.seen = load<Order::acquire, scope>(slot).epoch;
          return what.seen == what.expected;
        }))
      return false;
    store<Order::release, scope>(slot, Stamped{2 * lap + 1, value});
    return true;
  }

  /// By the one thread that takes: whether the value of ticket `head` has come, and which. Acquire.
  template <Scope scope>
  DEVICE bool peek(uint64_t head, uint32_t& value) const {
    const Stamped found = load<Order::acquire, scope>(slot_of(head));
    value = found.value;
    return found.epoch == 2 * static_cast<uint32_t>(head / slots_) + 1;
  }
  /// It has been read: the slot is free for the next lap. Release.
  template <Scope scope>
  DEVICE void free(uint64_t head) const {
    store<Order::release, scope>(slot_of(head),
                                 Stamped{2 * static_cast<uint32_t>(head / slots_) + 2, 0});
  }

 private:
  DEVICE Peer<Stamped> slot_of(uint64_t ticket) const {
    return (base_ + QueueLayout::kLine).as<Stamped>() + ticket % slots_;
  }

  Peer<std::byte> base_;
  uint32_t slots_;
};

}  // namespace tokenyard::megakernel
