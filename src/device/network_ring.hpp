/// A stream of slots of equal size to one rank over the network: the sender's end and the
/// receiver's. The slots and `arrived` lie in the receiver's memory, `credited` in the sender's.
///
///   sent      slots that the sender has published
///   arrived   sent, as signalled to the receiver
///   taken     slots that the receiver has read
///   credited  taken, as signalled to the sender
///
/// Invariant: credited <= taken <= arrived <= sent <= credited + capacity. So a put overwrites a
/// slot only after the receiver has read it, and the receiver reads a slot only after its put has
/// landed. A credit says nothing of the slot's source: a flush of the queue does.
///
/// The counts start at 0, only grow, and outlive a kernel: `sent` and `taken` are kept in their
/// owner's memory. One thread at a time uses an end; a block's other threads may put into reserved
/// slots by turns, through this ring's queue, or read arrived ones, between two barriers. A put by
/// another queue would not be covered by the signal.
#pragma once

#include "device/network.hpp"

namespace tokenyard {

struct SendRing {
  NetworkQueue queue;        ///< carries slots and their signal
  NetworkTarget slots;       ///< [capacity][slot_bytes] at the receiver
  NetworkTarget arrived;     ///< uint64_t at the receiver
  const uint64_t* credited;  ///< in this rank's memory, written by the receiver's signals
  uint64_t* sent;            ///< in this rank's memory
  uint32_t rank;             ///< the receiver
  uint32_t capacity, slot_bytes;

  /// Waits until the next `count` slots are free, which must be at most `capacity`.
  TOKENYARD_DEVICE bool reserve(const Deadline& deadline, uint32_t phase, uint32_t count) const {
    const uint64_t needed = *sent + count;
    return needed <= capacity || await_signal(deadline, phase, rank, credited, needed - capacity);
  }
  /// Returns how many slots are free now.
  TOKENYARD_DEVICE uint32_t free_slots() const {
    // Acquires the receiver's reads of the slots before each credit that is part of the sum.
    const uint64_t credits = load<Order::acquire, Scope::sys>(credited);
    return static_cast<uint32_t>(credits + capacity - *sent);
  }
  /// Returns where the slot `index` behind those published lies; it must be reserved.
  TOKENYARD_DEVICE NetworkTarget slot(uint32_t index) const {
    return slots + (*sent + index) % capacity * slot_bytes;
  }
  /// Puts the next `count` slots, which must be reserved and lie one behind the other, from one
  /// source, and signals them.
  TOKENYARD_DEVICE bool send(const Deadline& deadline, uint32_t phase, uint32_t count,
                             const NetworkSource& source) const {
    const NetworkTarget target = slot(0);
    *sent += count;
    return queue.put_and_signal(deadline, phase, target, source, arrived, count);
  }
  /// Signals that the next `count` slots have been put, by this ring's queue.
  TOKENYARD_DEVICE bool publish(const Deadline& deadline, uint32_t phase, uint32_t count) const {
    *sent += count;
    return queue.signal(deadline, phase, arrived, count);
  }
};

struct ReceiveRing {
  NetworkQueue queue;       ///< to the sender, for credits
  NetworkTarget credited;   ///< uint64_t at the sender
  const std::byte* slots;   ///< [capacity][slot_bytes] in this rank's memory
  const uint64_t* arrived;  ///< in this rank's memory, written by the sender's signals
  uint64_t* taken;          ///< in this rank's memory
  uint32_t rank;            ///< the sender
  uint32_t capacity, slot_bytes;

  /// Waits until the next `count` slots have arrived, which must be at most `capacity`.
  TOKENYARD_DEVICE bool await(const Deadline& deadline, uint32_t phase, uint32_t count) const {
    return await_signal(deadline, phase, rank, arrived, *taken + count);
  }
  /// Returns the slot `index` behind those released; it must have arrived.
  TOKENYARD_DEVICE const std::byte* slot(uint32_t index) const {
    return slots + (*taken + index) % capacity * slot_bytes;
  }
  /// Gives the next `count` slots, which have been read, back to the sender. Many at once cost one
  /// signal.
  TOKENYARD_DEVICE bool release(const Deadline& deadline, uint32_t phase, uint32_t count) const {
    *taken += count;
    // A mutant gives a credit for a slot that has not been read.
    return queue.signal(deadline, phase, credited, count + (mutated() ? 1 : 0));
  }
};

}  // namespace tokenyard
