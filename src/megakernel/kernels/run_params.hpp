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
/// An event with a number that only the device knows has triggers = one more than the most it could
/// be; whoever finds out that it is n adds the missing max + 1 - n at once.
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
/// In a dynamic run workers have no queues of their own. Schedulers, a warp of a block each besides
/// the workers, look out for events, and publish the tasks that an event releases:
///
///     worker: its task has run
///       announces its signals -----> scheduler: sees that all of an event's are announced; stores
///       fences, and signals            the task into the next slot of the rank's queue
///           |                              |
///           +------------------> a worker: sees its slot, and the event's counter
///
/// and nothing else lies between two tasks. (Events that other ranks or bodies of tasks signal are
/// not announced: schedulers look at their counters.) A worker draws a ticket of the queue while
/// its task runs, which says which slot it looks at next. Tickets are given out in the order in
/// which tasks are published, so whoever has waited longest goes first. As each iteration publishes
/// equally many tasks, the ticket also says which iteration its task belongs to, and, where events
/// come in the order of the graph, which task it will be: the compute warps have that packet before
/// its slot is filled, and look at the slot and at the task's events together. Where another task
/// comes, its packet is fetched and the one that was expected is dropped.
///
/// A slot only assigns: schedulers look at events and store into slots relaxed and fence nothing.
/// What comes before a task comes to it by the counters of its events, which its worker acquires
/// itself, as in a static run, and, what comes before the iteration, by Workspace::begun.
///
/// A slot is written again only after its value was taken: always so, if the queue holds as many
/// tasks as an iteration has, else a scheduler waits until whoever took it says so. So workers are
/// waited for, nothing is overwritten, and workers always come back to the queue: whatever a task
/// in it waits for has run, and its signals need nobody else. (So a signal is announced after its
/// task, not before.) Tasks that must go to one worker have queues of their own,
/// one a worker and scheduler, which also wait.
///
/// A scheduler does not look at all events: it begins with each when it sees one that comes before
/// it (Watch). A massive launch, of many tasks by one event, is shared by all schedulers of the
/// rank; the last scheduler serves events that other ranks signal. A task that alone awaits the
/// event which one task alone signals goes through no scheduler: the worker of the one runs the
/// other next. Scheduler 0 sees the last task of the iteration end, and ends the run or begins the
/// next iteration. Tasks are not counted whose one signal another task of the iteration awaits: it
/// ends later.
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
#include "megakernel/kernels/packet.hpp"
#include "megakernel/kernels/queue.hpp"

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

  static constexpr uint32_t kLine = 128;        ///< an event each, so that polls do not meet
  static constexpr uint32_t kAnnouncedAt = 64;  ///< from its counter
  static constexpr uint32_t kPromiseAt = 72;    ///< likewise
  HOST_DEVICE size_t last_at() const {
    return (ranks * sizeof(Stamped) + kLine - 1) / kLine * kLine;
  }
  HOST_DEVICE size_t counter_at(uint32_t event) const {
    return last_at() + size_t{kLine} * (1 + event);
  }
  HOST_DEVICE size_t bytes() const { return counter_at(events); }
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
  DEVICE Peer<Stamped> ready_word(uint32_t rank, uint32_t source) const {
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
};

/// Of dynamic runs, beside an event's counter: signals whose tasks have run, and that are about to
/// be released.
DEVICE Peer<uint64_t> announced_beside(Peer<uint64_t> counter) {
  return counter + WindowLayout::kAnnouncedAt / sizeof(uint64_t);
}

/// How many signals a dynamic event was last told to expect, and in which iteration.
struct Promise {
  uint64_t bits;

  HOST_DEVICE static Promise of(uint64_t iteration, uint32_t signals) {
    return {(iteration + 1) << 32 | signals};
  }
  HOST_DEVICE uint32_t signals() const { return static_cast<uint32_t>(bits); }
  HOST_DEVICE bool is_of(uint64_t iteration) const {
    return bits >> 32 == static_cast<uint32_t>(iteration + 1);
  }
};
/// Beside an event's counter.
DEVICE Peer<uint64_t> promise_beside(Peer<uint64_t> counter) {
  return counter + WindowLayout::kPromiseAt / sizeof(uint64_t);
}

/// Words of a rank's own memory.
struct Workspace {
  uint64_t begun;        ///< dynamic runs: one more than the iteration that runs, or kRunStopped
  uint64_t tasks_ended;  ///< dynamic runs: of those that are counted, of all iterations
  uint64_t ended;        ///< iterations that workers have ended, of all runs, added up
  uint64_t turn;         ///< of a fed run, a Turn
  AbortWord never;       ///< for waits that others' waits end: kNoAbort
};

/// What worker 0 of a fed run has heard from the host.
struct Turn {
  uint64_t bits;

  static constexpr uint32_t kAllowedMax = UINT32_MAX >> 1;
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
/// (surplus: for nothing; more signals came than there should be.)
enum class Stalled : uint32_t {
  nothing,
  event,
  carried,
  units,
  packet,
  ready_word,
  loop,
  host,
  queue,
  surplus
};
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

/// Of a dynamic run's words, that no place looks like: a worker's run ends; a slot's value has been
/// taken.
inline constexpr uint32_t kStop = UINT32_MAX, kTaken = UINT32_MAX - 1;
/// Of Workspace::begun: the run of this number has ended.
inline constexpr uint64_t kRunStopped = uint64_t{1} << 63;

/// A task of a dynamic run that waits for an event.
struct Dependent {
  uint32_t position;  ///< of its packet
  uint32_t waits;     ///< events that it needs in all
  uint32_t worker;    ///< only there, or kAnyWorker
  PacketPlace place;
};
inline constexpr uint32_t kAnyWorker = UINT32_MAX;

/// What a scheduler does when an event is complete, or an iteration begins. (Aligned, so that it is
/// loaded in few pieces.)
struct alignas(16) Watch {
  uint32_t event, triggers;
  uint32_t tasks_at, tasks;  ///< of `dependents`: what it launches
  uint32_t opens_at, opens;  ///< of `watches`: what it looks out for from then on
  uint32_t counts;           ///< whether any of the tasks waits for several events, or has a worker
  uint32_t announced;        ///< whether all of its signals are announced
  uint32_t opened_tasks_at, opened_tasks;  ///< what the first that it opens launches
  uint32_t unused[2];
};

/// An event that a scheduler looks out for.
struct OpenWatch {
  Watch watch;
  uint64_t need;  ///< of its counter
  uint64_t unused;
};

inline constexpr uint32_t kSchedulersMax = 8;    ///< of a rank
inline constexpr uint32_t kScheduledMax = 448;   ///< workers, where there are schedulers
inline constexpr uint32_t kTaskSlotsMax = 1024;  ///< that a worker may have in a queue

/// What a dynamic run needs besides.
struct DynamicParams {
  uint32_t schedulers = 0;                ///< blocks after the workers; 0: the run is static
  uint32_t counted = 0;                   ///< tasks of an iteration whose end is counted
  const Watch* watches = nullptr;         ///< first [schedulers] what they do when it begins
  const Dependent* dependents = nullptr;  ///< the tasks of watches
  const uint32_t* places = nullptr;       ///< PacketPlaces of the same
  uint64_t* arrived = nullptr;            ///< [positions] events that have come, in all iterations
  OpenWatch* open = nullptr;  ///< [schedulers][open_max] what its block has no place for
  uint32_t open_max = 0;

  Stamped* slots =
      nullptr;  ///< [slot_count] the queue: a task's place, and one more than its ticket
  uint32_t slot_count = 0;        ///< a power of two
  uint32_t queued = 0;            ///< tasks of an iteration that go through it
  uint32_t packet_units = 0;      ///< kPacketAlignment, of each packet's place
  uint64_t first_ticket = 0;      ///< of this run; a run's last tell each worker its end
  uint64_t* published = nullptr;  ///< tickets, by several schedulers
  uint64_t* drawn = nullptr;      ///< tickets, by workers

  uint32_t pinned = 0;               ///< whether there are tasks for one worker only
  uint32_t task_slots = 0;           ///< of the queues for them
  std::byte* task_queues = nullptr;  ///< [workers][schedulers] QueueLayout
  uint64_t* heads = nullptr;         ///< [workers][schedulers] where each reads its queues
  uint64_t* sent = nullptr;          ///< [schedulers][workers] tasks given, over all runs

  DEVICE Queue task_queue(uint32_t worker, uint32_t scheduler) const {
    const size_t at = (size_t{worker} * schedulers + scheduler) * QueueLayout{task_slots}.bytes();
    return {Peer<std::byte>(task_queues + at), task_slots};
  }
  DEVICE Stamped* slot_of(uint64_t ticket) const { return slots + (ticket & (slot_count - 1)); }
  /// Whether a slot may have to be waited for.
  DEVICE bool waits() const { return slot_count < queued; }
  /// The place of the packet at this position.
  DEVICE PacketPlace place_at(uint32_t position) const {
    return PacketPlace::of(position * packet_units, (position + 1) * packet_units);
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
  const EventRecord* events;  ///< [events] of this rank
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
  WaitContext wait_context;  ///< of an iteration
};

/// Awaited::phase is the task that waits or, past all tasks, one of these.
enum class RunPhase : uint32_t { ready_word, loop, packet, units, host, queue, iteration };
inline constexpr uint32_t kRunPhases = 7;
HOST_DEVICE uint32_t phase_of(const RunParams& params, RunPhase phase) {
  return params.tasks + static_cast<uint32_t>(phase);
}

}  // namespace tokenyard::megakernel
