/// A worker's shared memory.
///
///     WorkerShared | the running task's scratch | what a task loads ahead
///                  | rings of units [compute warps][depth]
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "megakernel/run_params.hpp"

namespace tokenyard::megakernel {

/// How far the feeder runs ahead of the compute warps. Unit loaders follow it, so it also bounds
/// how many tasks ahead weights are loaded.
inline constexpr uint32_t kPacketSlots = 8;

enum class NoteKind : uint32_t {
  task,
  turn,  ///< the iteration's last task lies before this
  end,
};

/// What the feeder says of the packet in a slot.
struct Note {
  uint64_t iteration;
  NoteKind kind;
};

inline constexpr uint32_t kNeverFailed = UINT32_MAX;

struct WorkerShared {
  Completion packet_full[kPacketSlots], packet_empty[kPacketSlots];
  Completion unit_full[kComputeWarpsMax][kUnitsMax], unit_empty[kComputeWarpsMax][kUnitsMax];
  Completion ahead_full, ahead_empty;
  Note notes[kPacketSlots];
  uint64_t begun;    ///< one more than the iteration whose tasks run
  uint32_t failed;   ///< the meeting that finds a wait failed, or kNeverFailed
  uint32_t ended;    ///< the compute warps need no more packets
  uint32_t stalled;  ///< somebody writes the StallRecord
  uint32_t loop_ends;
  uint32_t next_here[kPacketSlots];  ///< whether the packet after this one had come by then
  uint64_t heads[kSchedulersMax];    ///< the feeder's, in dynamic runs
  uint32_t follower;  ///< likewise: the PacketPlace of a task for the feeder to take, or 0
  alignas(128) std::byte packets[kPacketSlots][kPacketBytes];

  DEVICE const Packet& packet(uint32_t slot) const {
    return *reinterpret_cast<const Packet*>(packets[slot]);
  }
};

/// What the threads of a scheduler do next.
struct Orders {
  enum class Kind : uint32_t { launch, stop_workers, leave };
  Kind kind;
  uint32_t from, to, step;  ///< dependents
  uint32_t worker;          ///< to which the first of them goes, if they may go to any
  uint64_t began_ns;        ///< the iteration
};

/// A scheduler's shared memory, where workers have packets.
struct SchedulerShared {
  uint64_t sent[kScheduledMax];   ///< tasks given to each worker
  uint64_t taken[kScheduledMax];  ///< at least so many of them it has taken
  Orders orders[2];               ///< in turn: the last may still be read
};
static_assert(sizeof(SchedulerShared) <= sizeof(WorkerShared::packets));

/// Where in a ring of slots somebody is: the slot, and which lap, whose parity its phase has.
struct RingCursor {
  uint32_t slot = 0, lap = 0;

  DEVICE uint32_t parity() const { return lap & 1; }
  DEVICE void next(uint32_t slots) {
    if (++slot < slots) return;
    slot = 0;
    ++lap;
  }
};

HOST_DEVICE uint32_t aligned_128(uint32_t bytes) {
  return (bytes + 127) / 128 * 128;
}
DEVICE std::byte* scratch(const RunParams&) {
  return block::shared_tail<WorkerShared>();
}
DEVICE std::byte* ahead_area(const RunParams& params) {
  return scratch(params) + aligned_128(params.scratch_bytes);
}
DEVICE std::byte* unit_slot(const RunParams& params, uint32_t warp, uint32_t slot) {
  return ahead_area(params) + aligned_128(params.ahead_bytes) +
         (warp * params.streams.depth + slot) * params.streams.unit_bytes;
}

}  // namespace tokenyard::megakernel
