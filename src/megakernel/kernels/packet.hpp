/// A task as its worker reads it: one piece of memory that a single bulk copy brings into shared
/// memory while the task before it runs. Host code writes packets, kernels only read them.
///
///     Packet | WaitRecord[waits] | SignalRecord[signals] | Args
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kPacketBytes = 1024;  ///< at most
inline constexpr uint32_t kPacketAlignment = 16;

struct WaitRecord {
  // WaitRecord::remote, where other ranks signal the event.
  static constexpr uint16_t kOneRank = 1;  ///< one other rank, and nobody else
  static constexpr uint16_t kSomeRanks = 2;
  uint32_t event;     ///< of this rank
  uint32_t triggers;  ///< signals that complete it, an iteration
  uint32_t lag;       ///< iterations back
  uint16_t remote;    ///< kOneRank or kSomeRanks; 0 if only its own rank signals it
  uint16_t rank;      ///< one that does, for reports
};

/// Who looks out for an event of a dynamic run and launches its tasks: a scheduler of its rank.
enum class Launch : uint16_t {
  nobody = 0xffff,  ///< no task waits for it
  every = 0xfffe,   ///< a massive launch: each launches its share of the tasks
  /// The one task that waits for it, and for nothing else, runs where the one task was that signals
  /// it, right after.
  follower = 0xfffd,
};  // Else one, by its index.

struct SignalRecord {
  uint32_t event;
  uint16_t rank;     ///< whose
  uint16_t count;    ///< how many signals at once
  uint32_t sys;      ///< whether other ranks, or bodies of tasks, signal it as well
  uint32_t follows;  ///< of dynamic runs: whether the task that follows runs by it
};

struct Packet {
  uint32_t bytes;  ///< of the whole
  uint32_t task;   ///< in the rank's graph
  uint32_t type;   ///< in the kernel's table
  uint32_t waits, signals;
  uint32_t args_at;   ///< from the packet's begin
  uint32_t counted;   ///< of dynamic runs: whether the iteration awaits its end (Launches)
  uint32_t follower;  ///< likewise: the PacketPlace of the task that follows, or 0

  HOST_DEVICE const WaitRecord* wait_records() const {
    return reinterpret_cast<const WaitRecord*>(this + 1);
  }
  HOST_DEVICE const SignalRecord* signal_records() const {
    return reinterpret_cast<const SignalRecord*>(wait_records() + waits);
  }
  HOST_DEVICE const std::byte* args() const {
    return reinterpret_cast<const std::byte*>(this) + args_at;
  }
};
static_assert(sizeof(WaitRecord) % kPacketAlignment == 0);
static_assert(sizeof(SignalRecord) % kPacketAlignment == 0);
static_assert(sizeof(Packet) % kPacketAlignment == 0);

/// What tasks that count on the device must know of an event.
struct EventRecord {
  uint32_t triggers;     ///< an iteration
  uint32_t dynamic_max;  ///< the most that a number can be which only the device knows
  uint32_t awaited;      ///< whether a task of the rank, or its loop, awaits it
};
/// An event's triggers for such a number: one is left for the task that finds it out, even if that
/// is the most. So the event is never complete before that task has run.
HOST_DEVICE uint32_t dynamic_triggers(uint32_t dynamic_max) {
  return dynamic_max + 1;
}

}  // namespace tokenyard::megakernel
