/// One launch of a graph's kernel, on one rank.
///
/// In a static run, each block is a worker with a queue of tasks, fixed when the graph was
/// compiled. Its warps:
///
///     a loading warp, lane 31: feeder      copies packets into a ring in shared memory, some
///                                          tasks ahead, iteration after iteration
///     another, lane 30: ahead loader       loads the data that a task needs before it begins
///                                          (a cache), once the iteration has begun here
///     two others, lane w: unit loader w    reads each packet and loads the weights that warp w
///                                          of its task streams, limited by its ring and by the
///                                          number of copies in flight
///     the other warps: compute             process packet after packet:
///
///         await the packet; await its events (a thread per event, acquire)   -- meet --
///         run the task                                                       -- meet --
///         signal its events (a thread per event, release)
///
/// The first meeting is skipped before a task without events if all threads learned at the previous
/// meeting that its packet has arrived.
///
/// An event is a 64-bit counter in the window of its rank's arena. It only grows, and the event is
/// complete in iteration i once it reaches triggers * (i + 1). Iterations are numbered through all
/// runs of the object, so no counter is ever cleared; and waits compare with `>=`, so a signaller
/// that runs ahead does no harm. (compile() proves that no signal of iteration i + 1 comes before
/// the last of iteration i.) The counter of a carried event is never read: its signals are strong
/// words that task bodies write and await themselves (tasks/words.hpp). It is in the graph for the
/// proofs only.
///
/// A dynamic event, whose count is known only on the device, has one trigger more than the largest
/// possible count. The task that determines its count n adds the missing max + 1 - n at once.
///
/// A run begins with a ready word to every rank, which holds the run's number and length. No task
/// runs before the ready words of all ranks have arrived, so no rank stores into memory whose owner
/// still reads results of the previous run. A run ends
///  - after a given number of iterations; or
///  - after the iteration in which Context::end_loop was called before the loop event completed:
///    every worker waits for that event before its next iteration; or
///  - if the host feeds it, when the host stops it: worker 0 waits until all workers have ended the
///    iteration, reports to the host, waits until the host allows another iteration or stops the
///    run, and passes the answer on (`turn`).
///
/// In a dynamic run, workers have no queues of their own. Schedulers, each one warp of an extra
/// block, watch events and publish the tasks that an event releases:
///
///     worker: its task has run
///       announces its signals -----> scheduler: sees all signals of an event announced; stores
///       fences, then signals           the task into the next slot of the rank's queue
///           |                              |
///           +------------------> a worker: sees its slot, and the event's counter
///
/// and nothing else separates two tasks. (Signals from other ranks or from task bodies are not
/// announced: schedulers look at the counters of these events.) While its task runs, a worker draws
/// a ticket, which selects the slot that it looks at next. Tickets are handed out in the order in
/// which tasks are published, so the worker that has waited longest goes first. Each iteration
/// publishes equally many tasks, so the ticket also gives the iteration of its task and, if events
/// complete in the order of the graph, the task itself: the compute warps have its packet before
/// the slot is filled, and look at the slot and at the task's events together. If a different task
/// arrives, its packet is fetched and the expected one is dropped.
///
/// A slot only assigns a task: schedulers read events and write slots relaxed and fence nothing. A
/// task's predecessors become visible through the counters of its events, which its worker acquires
/// itself, as in a static run; everything before the iteration becomes visible through
/// Workspace::begun.
///
/// A slot is overwritten only after its value was taken. This always holds if the queue has as many
/// slots as an iteration has tasks; otherwise a scheduler waits until the worker reports that it
/// took the value. Such waits end, since workers always come back to the queue: everything that a
/// queued task waits for has already run, and those tasks' signals depend on no other block. (For
/// this reason a signal is announced after its task, not before.) Tasks pinned to one worker have
/// queues of their own, one per worker and scheduler, which wait in the same way.
///
/// A scheduler does not watch all events at once: it begins to watch each one when it sees an
/// earlier one complete (Watch). A massive launch, of many tasks by one event, is shared by all
/// schedulers of the rank; the last scheduler serves events that other ranks signal. A task that
/// alone awaits an event with a single signaller bypasses the schedulers: the worker of the
/// signaller runs it next. Scheduler 0 sees the last task of the iteration end, and begins the next
/// iteration or ends the run. A task whose only signal is awaited by another task of the iteration
/// is not counted, because that one ends later.
///
/// Waits have a deadline, counted from the beginning of their iteration. The first wait to fail
/// fails the run on its rank; each worker then leaves a StallRecord of what it was waiting for.
/// Peers notice by their own deadlines or by the abort flag.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"
#include "device/peer.hpp"
#include "device/wait.hpp"
#include "megakernel/kernels/network_block.hpp"
#include "megakernel/kernels/packet.hpp"
#include "megakernel/kernels/queue.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kNoEvent = UINT32_MAX;
inline constexpr uint32_t kComputeWarpsMax = 8;
/// Loading warps per block, at most: two for units, one for packets, one for data loaded ahead.
/// They poll without a pause, and lanes of one warp that poll separately delay each other, so on a
/// GPU each has its own warp. With fewer warps they share the last one. (Registers are allocated to
/// four warps at a time, so the last one costs none.)
inline constexpr uint32_t kLoadingWarps = 4;
inline constexpr uint32_t kThreadsMax = (kComputeWarpsMax + kLoadingWarps) * 32;

/// Layout of the words of a rank that all ranks can reach.
struct WindowLayout {
  uint32_t ranks, events;

  static constexpr uint32_t kLine = 128;        ///< bytes per event: events share no cache line
  static constexpr uint32_t kAnnouncedAt = 64;  ///< bytes from the event's counter
  static constexpr uint32_t kPromiseAt = 72;    ///< likewise
  TOKENYARD_HOST_DEVICE size_t last_at() const {
    return (ranks * sizeof(Stamped) + kLine - 1) / kLine * kLine;
  }
  TOKENYARD_HOST_DEVICE size_t counter_at(uint32_t event) const {
    return last_at() + size_t{kLine} * (1 + event);
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return counter_at(events); }
};

struct Windows {
  PeerArray<std::byte> bases;
  std::byte* own;           ///< this rank's base, which saves a lookup on every hop
  std::byte* own_counters;  ///< likewise
  WindowLayout layout;

  TOKENYARD_DEVICE Peer<std::byte> base(uint32_t rank) const {
    return rank == bases.self ? Peer<std::byte>(own) : bases.of(rank);
  }
  /// Returns whether this rank loads and stores the other's memory.
  TOKENYARD_DEVICE bool reaches(uint32_t rank) const { return bool(base(rank)); }

  /// Returns the word that `source` writes when it begins a run.
  TOKENYARD_DEVICE Peer<Stamped> ready_word(uint32_t rank, uint32_t source) const {
    return base(rank).as<Stamped>() + source;
  }
  /// Returns the word that holds one more than the iteration to be the last; older values mean
  /// nothing.
  TOKENYARD_DEVICE Peer<uint64_t> last(uint32_t rank) const {
    return (base(rank) + layout.last_at()).as<uint64_t>();
  }
  TOKENYARD_DEVICE Peer<uint64_t> counter(uint32_t rank, uint32_t event) const {
    if (rank == bases.self) return own_counter(event);
    return (base(rank) + layout.counter_at(event)).as<uint64_t>();
  }
  TOKENYARD_DEVICE Peer<uint64_t> own_counter(uint32_t event) const {
    return Peer<uint64_t>(
        reinterpret_cast<uint64_t*>(own_counters + size_t{WindowLayout::kLine} * event));
  }
};

/// Returns the word beside an event's counter that counts, in dynamic runs, signals whose tasks
/// have run and which are about to be released.
TOKENYARD_DEVICE Peer<uint64_t> announced_beside(Peer<uint64_t> counter) {
  return counter + WindowLayout::kAnnouncedAt / sizeof(uint64_t);
}

/// The latest count that expect() announced for a dynamic event, and its iteration.
struct Promise {
  uint64_t bits;

  TOKENYARD_HOST_DEVICE static Promise of(uint64_t iteration, uint32_t signals) {
    return {(iteration + 1) << 32 | signals};
  }
  TOKENYARD_HOST_DEVICE uint32_t signals() const { return static_cast<uint32_t>(bits); }
  TOKENYARD_HOST_DEVICE bool is_of(uint64_t iteration) const {
    return bits >> 32 == static_cast<uint32_t>(iteration + 1);
  }
};
/// Returns the Promise's word beside an event's counter.
TOKENYARD_DEVICE Peer<uint64_t> promise_beside(Peer<uint64_t> counter) {
  return counter + WindowLayout::kPromiseAt / sizeof(uint64_t);
}

/// Words in a rank's own memory.
struct Workspace {
  uint64_t begun;        ///< dynamic runs: one more than the running iteration, or kRunStopped
  uint64_t tasks_ended;  ///< dynamic runs: counted tasks that ended, over all iterations
  uint64_t ended;        ///< iterations ended, summed over workers and runs
  uint64_t turn;         ///< fed runs: a Turn
  AbortWord never;       ///< always kNoAbort: for waits that other waits end
};

/// The host's last answer to worker 0 of a fed run.
struct Turn {
  uint64_t bits;

  static constexpr uint32_t kAllowedMax = UINT32_MAX >> 1;
  TOKENYARD_HOST_DEVICE static Turn of(uint32_t run, uint32_t allowed, bool all) {
    return {uint64_t{run} << 32 | allowed << 1 | (all ? 1 : 0)};
  }
  TOKENYARD_HOST_DEVICE uint32_t run() const { return static_cast<uint32_t>(bits >> 32); }
  TOKENYARD_HOST_DEVICE uint32_t allowed() const {
    return static_cast<uint32_t>(bits) >> 1;
  }  ///< iterations
  TOKENYARD_HOST_DEVICE bool all() const {
    return (bits & 1) != 0;
  }  ///< whether no more will be allowed
};

/// Words that host code and a running kernel exchange.
struct RunRecord {
  uint32_t started;  ///< written by the kernel: the number of the run
  uint32_t done;     ///< written by worker 0 of a fed run: iterations that have ended in it
  uint32_t fed;      ///< written by the host: iterations allowed
  uint32_t stop;     ///< written by the host: whether no more will be allowed
};

/// The wait of a worker at the failure of its run. (surplus: not a wait; more signals arrived than
/// declared.)
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
  surplus,
  far_loop  ///< not a wait: a task ends the loop of a rank on another host
};
struct StallRecord {
  Stalled what = Stalled::nothing;
  uint32_t task = 0;  ///< index in the graph
  uint32_t event = 0;
  uint32_t rank = 0;  ///< that has to deliver it
  uint64_t iteration = 0, need = 0, have = 0;
};

/// Begin and end of a packet, in one word.
struct PacketPlace {
  uint32_t bits;

  static constexpr uint32_t kUnitBits = 7;  ///< a packet has at most 64 units of kPacketAlignment
  static constexpr uint32_t kUnitsEnd = 1u << (32 - kUnitBits);  ///< units of all packets together
  TOKENYARD_HOST_DEVICE static PacketPlace of(uint32_t begin, uint32_t end) {
    return {begin << kUnitBits | (end - begin)};
  }
  TOKENYARD_HOST_DEVICE size_t from() const { return size_t{bits >> kUnitBits} * kPacketAlignment; }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return bits % (1u << kUnitBits) * kPacketAlignment;
  }
};
static_assert(kPacketBytes / kPacketAlignment <= 1u << (PacketPlace::kUnitBits - 1),
              "no place looks like what schedulers say besides");

/// Slot values of dynamic runs that no PacketPlace equals: the run ends for the worker; the slot's
/// value was taken.
inline constexpr uint32_t kStop = UINT32_MAX, kTaken = UINT32_MAX - 1;
/// Flag in Workspace::begun: the run whose number is in the other bits has ended.
inline constexpr uint64_t kRunStopped = uint64_t{1} << 63;

/// A task of a dynamic run that waits for an event.
struct Dependent {
  uint32_t position;  ///< of its packet
  uint32_t waits;     ///< events that it needs in total
  uint32_t worker;    ///< the only worker that may run it, or kAnyWorker
  PacketPlace place;
};
inline constexpr uint32_t kAnyWorker = UINT32_MAX;

/// A scheduler's actions when an event completes or an iteration begins. (Aligned so that few loads
/// suffice.)
struct alignas(16) Watch {
  uint32_t event, triggers;
  uint32_t tasks_at, tasks;  ///< range of `dependents` that it launches
  uint32_t opens_at, opens;  ///< range of `watches` that it then begins to watch
  uint32_t counts;           ///< whether any of the tasks waits for several events or is pinned
  uint32_t announced;        ///< whether all signals of the event are announced
  uint32_t opened_tasks_at, opened_tasks;  ///< tasks of the first watch that it opens
  uint32_t unused[2];
};

/// An event that a scheduler watches.
struct OpenWatch {
  Watch watch;
  uint64_t need;  ///< value that its counter must reach
  uint64_t unused;
};

inline constexpr uint32_t kSchedulersMax = 8;    ///< per rank
inline constexpr uint32_t kScheduledMax = 448;   ///< workers of a run with schedulers
inline constexpr uint32_t kTaskSlotsMax = 1024;  ///< queue slots per worker

/// Additional parameters of a dynamic run.
struct DynamicParams {
  uint32_t schedulers = 0;                ///< blocks after the workers; 0: the run is static
  uint32_t counted = 0;                   ///< tasks per iteration whose end is counted
  const Watch* watches = nullptr;         ///< the first [schedulers]: at an iteration's begin
  const Dependent* dependents = nullptr;  ///< tasks of the watches
  const uint32_t* places = nullptr;       ///< PacketPlaces of the same tasks
  uint64_t* arrived = nullptr;            ///< [positions] events completed, over all iterations
  OpenWatch* open = nullptr;              ///< [schedulers][open_max] overflow of shared memory
  uint32_t open_max = 0;

  Stamped* slots = nullptr;       ///< [slot_count] the queue: places, stamped with ticket + 1
  uint32_t slot_count = 0;        ///< a power of two
  uint32_t queued = 0;            ///< tasks per iteration that go through it
  uint32_t packet_units = 0;      ///< units of kPacketAlignment per packet
  uint64_t first_ticket = 0;      ///< of this run; its last tickets end it for each worker
  uint64_t* published = nullptr;  ///< tickets taken by schedulers, if there are several
  uint64_t* drawn = nullptr;      ///< tickets drawn by workers

  uint32_t pinned = 0;               ///< whether any task is pinned to a worker
  uint32_t task_slots = 0;           ///< capacity of each queue for pinned tasks
  std::byte* task_queues = nullptr;  ///< [workers][schedulers] QueueLayout
  uint64_t* heads = nullptr;         ///< [workers][schedulers] read position of each queue
  uint64_t* sent = nullptr;          ///< [schedulers][workers] tasks put there, over all runs

  TOKENYARD_DEVICE Queue task_queue(uint32_t worker, uint32_t scheduler) const {
    const size_t at = (size_t{worker} * schedulers + scheduler) * QueueLayout{task_slots}.bytes();
    return {Peer<std::byte>(task_queues + at), task_slots};
  }
  TOKENYARD_DEVICE Stamped* slot_of(uint64_t ticket) const {
    return slots + (ticket & (slot_count - 1));
  }
  /// Returns whether schedulers may have to wait for a slot.
  TOKENYARD_DEVICE bool waits() const { return slot_count < queued; }
  /// Returns the place of the packet at this position.
  TOKENYARD_DEVICE PacketPlace place_at(uint32_t position) const {
    return PacketPlace::of(position * packet_units, (position + 1) * packet_units);
  }
};

struct TraceRecord {
  uint32_t task, unused;
  uint64_t iteration;
  uint64_t taken_ns, begun_ns, ended_ns;  ///< packet arrived, events complete, done
};

/// Rings through which units are streamed.
struct StreamPlan {
  uint32_t unit_bytes = 0;  ///< 0: no task of the graph streams
  uint32_t depth = 0;       ///< units per warp's ring
  uint32_t in_flight = 0;   ///< copies per warp that may be in flight
};
inline constexpr uint32_t kUnitsMax = 8;  ///< largest depth

struct RunParams {
  uint32_t rank, ranks;
  uint32_t run;            ///< counts from 1
  uint32_t workers;        ///< blocks that run tasks
  uint32_t compute_warps;  ///< per block, loading warps not included
  uint32_t tasks;          ///< in the rank's graph
  uint64_t first;          ///< first iteration
  uint32_t iterations;     ///< 0: until the loop ends or the host stops the run
  bool fed;
  uint32_t loop_event;  ///< or kNoEvent
  const std::byte* packets;
  const uint32_t* positions;  ///< [tasks + 1] begin of each packet, in units of kPacketAlignment
  const uint32_t* queues;     ///< [workers + 1] first position of each worker's queue
  const EventRecord* events;  ///< [events] of this rank
  DynamicParams dynamic;
  StreamPlan streams;
  uint32_t scratch_bytes;
  uint32_t ahead_bytes;  ///< bytes that a task may load ahead; 0: none does
  Windows windows;
  Workspace* workspace;
  RunRecord* record;     ///< host-visible
  StallRecord* stalls;   ///< [blocks] host-visible
  uint64_t* progress;    ///< [blocks] host-visible: iterations ended, written by leaving blocks
  TraceRecord* trace;    ///< [workers][trace_records] or null
  uint32_t* trace_used;  ///< [workers]
  uint32_t trace_records;
  NetworkBlockParams network;
  WaitContext wait_context;  ///< per iteration
};

/// Values of Awaited::phase past the task indices, which stand for the waiting task.
enum class RunPhase : uint32_t { ready_word, loop, packet, units, host, queue, iteration, network };
inline constexpr uint32_t kRunPhases = 8;
TOKENYARD_HOST_DEVICE uint32_t phase_of(const RunParams& params, RunPhase phase) {
  return params.tasks + static_cast<uint32_t>(phase);
}

}  // namespace tokenyard::megakernel
