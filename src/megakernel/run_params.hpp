/// One launch of a graph's kernel, on one rank.
///
/// Each block is a worker with a queue of tasks, fixed when the graph was compiled. Its warps:
///
///     a loading warp, lane 31: the feeder  brings packets into a ring in shared memory, some
///                                          tasks ahead, iteration after iteration
///     another, lane 30: ahead loader       loads what a task wants of this iteration before it
///                                          begins (a cache), once the iteration has begun here
///     two others, lane w: unit loader w    reads each packet, and loads what warp w of that task
///                                          streams (weights), limited by its ring and by the
///                                          copies it may have in flight
///     the other warps:    compute          take packet after packet:
///
///         await the packet; await its events (a thread an event, acquire)   -- meet --
///         run the task                                                      -- meet --
///         signal its events (a thread an event, release)
///
/// The first meeting is left out before a task that awaits no events, if all have learned at the
/// meeting before that its packet has come.
///
/// An event is one 64-bit counter in the window of its rank's arena that only grows: it is complete
/// in iteration i once it has reached triggers * (i + 1). Iterations are numbered through all runs
/// of the object, so nobody clears a counter, and a wait asks for `>=`: whoever runs ahead harms
/// nobody. (That no signal of iteration i + 1 comes before the last of i is proved by compile().)
/// A carried event has no counter that anybody looks at: its signals are strong words that bodies
/// of tasks write and await themselves (tasks/words.hpp). It is in the graph for the proofs alone.
///
/// An event with a number that only the device knows has triggers = the most it could be; whoever
/// finds out that it is n adds the missing max - n at once.
///
/// A run begins with a hello to every rank: its number and how long it is to be. No task runs
/// before all hellos have come, so no rank stores into memory whose owner still reads what the run
/// before has left. It ends
///  - after a number of iterations; or
///  - after the iteration whose loop event has come with Context::end_loop called before it: every
///    worker waits for that event before its next iteration; or
///  - where the host feeds it: worker 0 waits for all workers to end the iteration, tells the host,
///    waits until the host has allowed another one or stopped the run, and passes that on (`turn`).
///
/// In a dynamic run workers have no queues of their own. Whoever gives an event its last signal
/// puts it into the queue of a scheduler, a block besides the workers. Its first thread takes
/// events; all its threads together count, for each task that waits for an event, how many of its
/// events have come, and give tasks that have all to workers in turn. A worker has a queue for each
/// scheduler. They are short: a scheduler waits for a free place, and never overwrites. A
/// scheduler's own queue has room for every event that can be in it (compile() proves that), so
/// nobody who adds to it waits, workers always come back to their queues, and all goes on. What the
/// tasks before it have done comes to a task through these queues, so it looks at no counter of its
/// own iteration again. A massive launch, of many tasks by one event, is shared by all schedulers
/// of the rank; the last scheduler serves events that other ranks signal. A task that alone awaits
/// the event which one task alone signals goes through no scheduler: the worker of the one runs the
/// other next. A worker whose task was the last of the iteration tells scheduler 0, which ends the
/// run or begins the next iteration: it is an event to tasks that would else wait for nothing of
/// this rank. Tasks are not counted whose one signal another task of the iteration awaits: it ends
/// later.
///
/// Waits have a deadline counted from the beginning of their iteration. The first to fail fails the
/// run on its rank; each worker then leaves a StallRecord of what it was waiting for. Peers find
/// out by their own deadlines, or by the alarm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"
#include "device/peer.hpp"
#include "device/wait.hpp"
#include "megakernel/packet.hpp"
#include "megakernel/queue.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kNoEvent = UINT32_MAX;
inline constexpr uint32_t kComputeWarpsMax = 8;
/// Warps that bring things, at most: two for units, one each for packets and for what is loaded
/// ahead. They poll without a pause, and lanes of one warp that do so apart keep each other
/// waiting, so a GPU gives each its own. Where there are fewer warps they share the last.
/// (Registers are handed out to four warps at a time: the last costs none.)
inline constexpr uint32_t kLoadingWarps = 4;
inline constexpr uint32_t kThreadsMax = (kComputeWarpsMax + kLoadingWarps) * 32;

/// Words of a rank that all ranks reach.
struct WindowLayout {
  uint32_t ranks, events;
  uint32_t schedulers = 0, event_slots = 0;  ///< of a rank; of each scheduler's queue

  static constexpr uint32_t kLine = 128;  ///< a counter each, so that polls do not meet
  HOST_DEVICE size_t last_at() const {
    return (ranks * sizeof(Stamped) + kLine - 1) / kLine * kLine;
  }
  HOST_DEVICE size_t counter_at(uint32_t event) const {
    return last_at() + size_t{kLine} * (1 + event);
  }
  HOST_DEVICE size_t queue_at(uint32_t scheduler) const {
    return counter_at(events) + scheduler * QueueLayout{event_slots}.bytes();
  }
  HOST_DEVICE size_t bytes() const { return queue_at(schedulers); }
};

struct Windows {
  PeerArray<std::byte> bases;
  std::byte* own;           ///< this rank's, so that it need not be looked up on every hop
  std::byte* own_counters;  ///< likewise
  WindowLayout layout;

  DEVICE Peer<std::byte> base(uint32_t rank) const {
    return rank == bases.self ? Peer<std::byte>(own) : bases.of(rank);
  }

  /// What `source` says when it begins a run.
  DEVICE Peer<Stamped> hello(uint32_t rank, uint32_t source) const {
    return base(rank).as<Stamped>() + source;
  }
  /// One more than the iteration that shall be the last; older values mean nothing.
  DEVICE Peer<uint64_t> last(uint32_t rank) const {
    return (base(rank) + layout.last_at()).as<uint64_t>();
  }
  DEVICE Peer<uint64_t> counter(uint32_t rank, uint32_t event) const {
    if (rank == bases.self) return own_counter(event);
    return (base(rank) + layout.counter_at(event)).as<uint64_t>();
  }
  DEVICE Peer<uint64_t> own_counter(uint32_t event) const {
    return Peer<uint64_t>(
        reinterpret_cast<uint64_t*>(own_counters + size_t{WindowLayout::kLine} * event));
  }
  DEVICE Peer<std::byte> event_queue_at(uint32_t rank, uint32_t scheduler) const {
    return base(rank) + layout.queue_at(scheduler);
  }
  DEVICE Queue event_queue(uint32_t rank, uint32_t scheduler) const {
    return {event_queue_at(rank, scheduler), layout.event_slots};
  }
};

/// Words of a rank's own memory.
struct Workspace {
  uint64_t iteration;    ///< dynamic runs: that tasks taken from queues belong to
  uint64_t tasks_ended;  ///< dynamic runs: of those that are counted, of all iterations
  uint64_t ended;        ///< iterations that workers have ended, of all runs, added up
  uint64_t turn;         ///< of a fed run, a Turn
  Alarm never;           ///< for waits that others' waits end: kNoAlarm
};

/// What worker 0 of a fed run has heard from the host.
struct Turn {
  uint64_t bits;

  HOST_DEVICE static Turn of(uint32_t run, uint32_t allowed, bool all) {
    return {uint64_t{run} << 32 | allowed << 1 | (all ? 1 : 0)};
  }
  HOST_DEVICE uint32_t run() const { return static_cast<uint32_t>(bits >> 32); }
  HOST_DEVICE uint32_t allowed() const { return static_cast<uint32_t>(bits) >> 1; }  ///< iterations
  HOST_DEVICE bool all() const { return (bits & 1) != 0; }  ///< there will be no more
};

/// What host code and a running kernel tell each other.
struct RunRecord {
  uint32_t started;  ///< by the kernel: the number of the run
  uint32_t done;     ///< by worker 0 of a fed run: iterations that have ended in it
  uint32_t fed;      ///< by the host: iterations allowed
  uint32_t stop;     ///< by the host: no more will be
};

/// What a worker waited for when its run failed.
enum class Stalled : uint32_t { nothing, event, carried, units, packet, hello, loop, host, queue };
struct StallRecord {
  Stalled what = Stalled::nothing;
  uint32_t task = 0;  ///< in the graph
  uint32_t event = 0;
  uint32_t rank = 0;  ///< that owes it
  uint64_t iteration = 0, need = 0, have = 0;
};

/// Where a packet lies, in one word.
struct PacketPlace {
  uint32_t bits;

  static constexpr uint32_t kUnitBits = 7;  ///< a packet is at most 64 kPacketAlignment
  static constexpr uint32_t kUnitsEnd = 1u << (32 - kUnitBits);  ///< of all packets together
  HOST_DEVICE static PacketPlace of(uint32_t begin, uint32_t end) {
    return {begin << kUnitBits | (end - begin)};
  }
  HOST_DEVICE size_t from() const { return size_t{bits >> kUnitBits} * kPacketAlignment; }
  HOST_DEVICE uint32_t bytes() const { return bits % (1u << kUnitBits) * kPacketAlignment; }
};
static_assert(kPacketBytes / kPacketAlignment <= 1u << (PacketPlace::kUnitBits - 1),
              "no place looks like what schedulers say besides");

/// A task of a dynamic run that waits for an event.
struct Dependent {
  uint32_t position;  ///< of its packet
  uint32_t waits;     ///< events that it needs in all
  uint32_t worker;    ///< only there, or kAnyWorker
  PacketPlace place;
};
inline constexpr uint32_t kAnyWorker = UINT32_MAX;

inline constexpr uint32_t kSchedulersMax = 8;   ///< of a rank
inline constexpr uint32_t kScheduledMax = 448;  ///< workers, where there are schedulers

/// What a dynamic run needs besides.
struct DynamicParams {
  uint32_t schedulers = 0;                ///< blocks after the workers; 0: the run is static
  uint32_t task_slots = 0;                ///< of a worker's queues
  uint32_t counted = 0;                   ///< tasks of an iteration whose end is counted
  const Dependent* dependents = nullptr;  ///< of event e: from events[e].tasks_at to the next's
  uint32_t begin_at = 0, begin_end = 0;   ///< those of an iteration's begin
  uint64_t* arrived = nullptr;       ///< [positions] events that have come, over all iterations
  std::byte* task_queues = nullptr;  ///< [workers][schedulers] QueueLayout
  uint64_t* heads = nullptr;  ///< [workers][schedulers], [schedulers] where each reads its queues
  uint64_t* sent = nullptr;   ///< [schedulers][workers] tasks given, over all runs

  DEVICE Queue task_queue(uint32_t worker, uint32_t scheduler) const {
    const size_t at = (size_t{worker} * schedulers + scheduler) * QueueLayout{task_slots}.bytes();
    return {Peer<std::byte>(task_queues + at), task_slots};
  }
};

struct TraceRecord {
  uint32_t task, unused;
  uint64_t iteration;
  uint64_t taken_ns, begun_ns, ended_ns;  ///< packet there; events there; done
};

/// Rings through which units are streamed.
struct StreamPlan {
  uint32_t unit_bytes = 0;  ///< 0: no task of the graph streams
  uint32_t depth = 0;       ///< units a warp's ring holds
  uint32_t in_flight = 0;   ///< copies of a warp that may be under way
};
inline constexpr uint32_t kUnitsMax = 8;  ///< depth

struct RunParams {
  uint32_t rank, ranks;
  uint32_t run;            ///< counts from 1
  uint32_t workers;        ///< blocks that run tasks
  uint32_t compute_warps;  ///< of a block; one more loads
  uint32_t tasks;          ///< of the rank
  uint64_t first;          ///< iteration
  uint32_t iterations;     ///< 0: until the loop ends, or the host stops it
  bool fed;
  uint32_t loop_event;  ///< or kNoEvent
  const std::byte* packets;
  const uint32_t* positions;  ///< [tasks + 1] where each packet begins, in kPacketAlignment
  const uint32_t* queues;     ///< [workers + 1] first position of each worker
  const EventRecord* events;  ///< [events + 1] of this rank
  DynamicParams dynamic;
  StreamPlan streams;
  uint32_t scratch_bytes;
  uint32_t ahead_bytes;  ///< that a task may load ahead; 0: none does
  Windows windows;
  Workspace* workspace;
  RunRecord* record;     ///< host-visible
  StallRecord* stalls;   ///< [blocks] host-visible
  uint64_t* progress;    ///< [blocks] host-visible: iterations each has ended, when it leaves
  TraceRecord* trace;    ///< [workers, trace_records] or null
  uint32_t* trace_used;  ///< [workers]
  uint32_t trace_records;
  Patience patience;  ///< of an iteration
};

/// Awaited::phase is the task that waits or, past all tasks, one of these.
enum class RunPhase : uint32_t { hello, loop, packet, units, host, queue, iteration };
inline constexpr uint32_t kRunPhases = 7;
HOST_DEVICE uint32_t phase_of(const RunParams& params, RunPhase phase) {
  return params.tasks + static_cast<uint32_t>(phase);
}

}  // namespace tokenyard::megakernel
