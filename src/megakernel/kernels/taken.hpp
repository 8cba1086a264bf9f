/// A task as the threads of its worker carry it along, from its packet to its signals.
#pragma once

#include "megakernel/kernels/launch_kernel.hpp"

namespace tokenyard::megakernel {

/// A packet that a worker's thread has taken. Its head is in registers: all of it is asked for, at
/// times when nothing else is under way.
struct Taken {
  Note note;
  Packet head;           ///< of a task
  const std::byte* at;   ///< in shared memory
  CountedSignal signal;  ///< of this thread
  uint32_t led_on = 0;   ///< in a dynamic run: what it would send, had the task not a follower
  bool met = false;      ///< likewise: what it awaits has come, as all have learned

  DEVICE const WaitRecord* wait_records() const {
    return reinterpret_cast<const WaitRecord*>(at + sizeof(Packet));
  }
  DEVICE const SignalRecord* signal_records() const {
    return reinterpret_cast<const SignalRecord*>(wait_records() + head.waits);
  }
  DEVICE const std::byte* args() const { return at + head.args_at; }
};

}  // namespace tokenyard::megakernel
