/// Layout of a worker's shared memory.
///
///     WorkerShared | the running task's scratch | data loaded ahead
///                  | rings of units [compute warps][depth]
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "megakernel/kernels/run_params.hpp"

namespace tokenyard::megakernel {

/// Packets by which the feeder runs ahead of the compute warps. Unit loaders follow it, so this
/// also bounds how many tasks ahead weights are loaded.
inline constexpr uint32_t kPacketSlots = 8;

enum class NoteKind : uint32_t {
  task,
  turn,  ///< end of an iteration
  end,
  // Dynamic runs only:
  follower,  ///< a task that the previous task on this worker started
  expected,  ///< a task that the ticket should bring; becomes `task` once the slot confirms it
  dropped,   ///< an expected task in whose place another one arrived
};
TOKENYARD_HOST_DEVICE bool is_task(NoteKind kind) {
  return kind == NoteKind::task || kind == NoteKind::follower;
}

/// The compute warps' order for the feeder's next packet, in a dynamic run.
struct PacketOrder {
  uint64_t bits;

  static constexpr uint64_t kGiven = uint64_t{1} << 32;
  static constexpr uint64_t kTicketUsed = uint64_t{1} << 33;    ///< a new one must be drawn
  static constexpr uint64_t kHasIteration = uint64_t{1} << 34;  ///< ordered_iteration is valid
  /// Orders the follower, or the ticket's expected task if `follower` is 0.
  TOKENYARD_HOST_DEVICE static PacketOrder next(uint32_t follower, bool ticket_used) {
    return {kGiven | (ticket_used ? kTicketUsed : 0) | follower};
  }
  TOKENYARD_HOST_DEVICE static PacketOrder other(uint32_t place, bool ticket_used) {
    return {kGiven | (ticket_used ? kTicketUsed : 0) | kHasIteration | place};
  }
  TOKENYARD_HOST_DEVICE uint32_t place() const {
    return static_cast<uint32_t>(bits);
  }  ///< 0: the ticket's expected task
  TOKENYARD_HOST_DEVICE bool ticket_used() const { return (bits & kTicketUsed) != 0; }
  TOKENYARD_HOST_DEVICE bool has_iteration() const { return (bits & kHasIteration) != 0; }
};

/// The fate of an expected packet, and the meeting at which all threads learn it. Written only if
/// the packet is not to be run.
struct Verdict {
  uint32_t bits;

  enum class Kind : uint32_t { run, drop, stop };
  TOKENYARD_HOST_DEVICE static Verdict of(Kind kind, uint32_t meeting) {
    return {meeting << 2 | static_cast<uint32_t>(kind)};
  }
  TOKENYARD_HOST_DEVICE Kind at(uint32_t meeting) const {
    return bits >> 2 == (meeting & (UINT32_MAX >> 2)) ? static_cast<Kind>(bits & 3) : Kind::run;
  }
};

/// The feeder's note on the packet in a slot.
struct Note {
  uint64_t iteration;
  NoteKind kind;

  /// Returns the kind, for loaders: `expected` until the compute warps decide. Relaxed: the packet
  /// itself does not change.
  TOKENYARD_DEVICE NoteKind look() const { return load<Order::relaxed, Scope::block>(&kind); }
};

/// The ticket of an expected packet, and the place that its slot must hold for the packet to run.
struct Ticket {
  uint64_t number;
  PacketPlace place;
};

inline constexpr uint32_t kNeverFailed = UINT32_MAX;

struct WorkerShared {
  Completion packet_full[kPacketSlots], packet_empty[kPacketSlots];
  Completion unit_full[kComputeWarpsMax][kUnitsMax], unit_empty[kComputeWarpsMax][kUnitsMax];
  Completion ahead_full, ahead_empty;
  Note notes[kPacketSlots];
  uint64_t begun;    ///< one more than the iteration whose tasks run
  uint32_t failed;   ///< number of the meeting that ends the run, or kNeverFailed
  uint32_t ended;    ///< whether the compute warps need no more packets
  uint32_t stalled;  ///< whether a thread has claimed the StallRecord
  uint32_t loop_ends;
  uint32_t next_here[kPacketSlots];  ///< whether the following packet had arrived already
  // Dynamic runs only:
  uint64_t order;                  ///< a PacketOrder for the feeder; 0: none
  uint64_t ordered_iteration;      ///< of a task other than the expected one
  Ticket tickets[kPacketSlots];    ///< of expected packets
  uint32_t verdict;                ///< a Verdict on the expected packet
  uint64_t heads[kSchedulersMax];  ///< read positions of the worker's own queues
  alignas(128) std::byte packets[kPacketSlots][kPacketBytes];

  TOKENYARD_DEVICE const Packet& packet(uint32_t slot) const {
    return *reinterpret_cast<const Packet*>(packets[slot]);
  }
};

/// A scheduler's shared memory, in the place of a worker's scratch.
struct SchedulerShared {
  static constexpr uint32_t kOpen = 96;  ///< further ones are in global memory
  OpenWatch open[kOpen];
  uint64_t sent[kScheduledMax];   ///< pinned tasks given to each worker
  uint64_t taken[kScheduledMax];  ///< lower bound of those that it has taken
};

/// A position in a ring of slots: the slot, and the lap, whose parity is that of the slot's phase.
struct RingCursor {
  uint32_t slot = 0, lap = 0;

  TOKENYARD_DEVICE uint32_t parity() const { return lap & 1; }
  TOKENYARD_DEVICE void next(uint32_t slots) {
    if (++slot < slots) return;
    slot = 0;
    ++lap;
  }
};

TOKENYARD_HOST_DEVICE uint32_t aligned_128(uint32_t bytes) {
  return (bytes + 127) / 128 * 128;
}
TOKENYARD_DEVICE std::byte* scratch(const RunParams&) {
  return block::shared_tail<WorkerShared>();
}
TOKENYARD_DEVICE std::byte* ahead_area(const RunParams& params) {
  return scratch(params) + aligned_128(params.scratch_bytes);
}
TOKENYARD_DEVICE std::byte* unit_slot(const RunParams& params, uint32_t warp, uint32_t slot) {
  return ahead_area(params) + aligned_128(params.ahead_bytes) +
         (warp * params.streams.depth + slot) * params.streams.unit_bytes;
}

/// Initializes shared memory, by the whole block, before its first meeting.
TOKENYARD_DEVICE void ready_shared_memory(const RunParams& params, WorkerShared& shared) {
  const uint32_t self = thread::index();
  if (self == 0) {
    shared.failed = kNeverFailed;
    shared.ended = shared.stalled = shared.loop_ends = 0;
    shared.begun = 0;
    shared.order = 0;
    shared.verdict = 0;
    shared.ahead_full.init(1);
    shared.ahead_empty.init(1);
  }
  // A slot is free once every compute warp and every loading lane has read it.
  const uint32_t readers = params.compute_warps * (params.streams.unit_bytes > 0 ? 2 : 1) +
                           (params.ahead_bytes > 0 ? 1 : 0);
  if (self < kPacketSlots) {
    shared.packet_full[self].init(1);
    shared.packet_empty[self].init(readers);
  }
  const uint32_t depth = params.streams.depth;
  for (uint32_t i = self; i < params.compute_warps * depth; i += block::threads()) {
    shared.unit_full[i / depth][i % depth].init(1);
    shared.unit_empty[i / depth][i % depth].init(1);
  }
  fence_async();
}

}  // namespace tokenyard::megakernel
