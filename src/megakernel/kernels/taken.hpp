/// A task as each thread of its worker holds it, from its packet to its signals.
#pragma once

#include "megakernel/kernels/launch_kernel.hpp"

namespace tokenyard::megakernel {

/// A packet that a worker's thread has taken. Its head is in registers, since all of it is needed
/// at times when no other load is in flight.
struct Taken {
  Note note;
  Packet head;           ///< of the task
  const std::byte* at;   ///< in shared memory
  CountedSignal signal;  ///< this thread's
  uint32_t led_on = 0;   ///< dynamic runs: the signal's count, which a follower made unnecessary
  bool met = false;      ///< dynamic runs: whether all threads know that its events are complete

  TOKENYARD_DEVICE const WaitRecord* wait_records() const {
    return reinterpret_cast<const WaitRecord*>(at + sizeof(Packet));
  }
  TOKENYARD_DEVICE const SignalRecord* signal_records() const {
    return reinterpret_cast<const SignalRecord*>(wait_records() + head.waits);
  }
  TOKENYARD_DEVICE const std::byte* args() const { return at + head.args_at; }
};

}  // namespace tokenyard::megakernel
