/// A task as its worker reads it: contiguous memory that one bulk copy brings into shared memory
/// while the previous task runs. Host code writes packets; kernels only read them.
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
  // Values of `remote` for events that other ranks signal.
  static constexpr uint16_t kOneRank = 1;  ///< exactly one other rank, and no task of this rank
  static constexpr uint16_t kSomeRanks = 2;
  uint32_t event;     ///< of this rank
  uint32_t triggers;  ///< signals that complete it per iteration
  uint32_t lag;       ///< how many iterations back
  uint16_t remote;    ///< kOneRank or kSomeRanks; 0 if only its own rank signals it
  uint16_t rank;      ///< one of those ranks, for reports
};

/// How a dynamic run launches the tasks of an event: by schedulers, or directly. Other values are
/// the index of the one scheduler that does.
enum class Launch : uint16_t {
  nobody = 0xffff,  ///< no task waits for the event
  every = 0xfffe,   ///< a massive launch: each scheduler launches its share of the tasks
  /// The only task that waits for it, and for nothing else, runs right after its only signaller, on
  /// the same worker.
  follower = 0xfffd,
};

struct SignalRecord {
  uint32_t event;
  uint16_t rank;     ///< that has the event
  uint16_t count;    ///< signals added at once
  uint32_t sys;      ///< whether other ranks or task bodies signal it as well
  uint32_t follows;  ///< dynamic runs: whether it starts the task's follower
};

struct Packet {
  uint32_t bytes;  ///< of the whole packet
  uint32_t task;   ///< index in the rank's graph
  uint32_t type;   ///< index in the kernel's table
  uint32_t waits, signals;
  uint32_t args_at;   ///< bytes from the packet's begin
  uint32_t counted;   ///< dynamic runs: whether the iteration counts its end (Launches)
  uint32_t follower;  ///< dynamic runs: PacketPlace of its follower, or 0

  TOKENYARD_HOST_DEVICE const WaitRecord* wait_records() const {
    return reinterpret_cast<const WaitRecord*>(this + 1);
  }
  TOKENYARD_HOST_DEVICE const SignalRecord* signal_records() const {
    return reinterpret_cast<const SignalRecord*>(wait_records() + waits);
  }
  TOKENYARD_HOST_DEVICE const std::byte* args() const {
    return reinterpret_cast<const std::byte*>(this) + args_at;
  }
};
static_assert(sizeof(WaitRecord) % kPacketAlignment == 0);
static_assert(sizeof(SignalRecord) % kPacketAlignment == 0);
static_assert(sizeof(Packet) % kPacketAlignment == 0);

/// Facts about an event for tasks that count signals on the device.
struct EventRecord {
  uint32_t triggers;     ///< signals per iteration
  uint32_t dynamic_max;  ///< upper bound of a count known only on the device
  uint32_t awaited;      ///< whether a task of the rank, or its loop, awaits it
};
/// Returns the triggers for a dynamic count. One is reserved for the task that determines the
/// count, so the event is never complete before that task has run, even if the count is the
/// maximum.
TOKENYARD_HOST_DEVICE uint32_t dynamic_triggers(uint32_t dynamic_max) {
  return dynamic_max + 1;
}

}  // namespace tokenyard::megakernel
