/// A worker: run_params.hpp tells how it works.
#pragma once

#include "megakernel/scheduler_kernel.hpp"
#include "megakernel/streaming_kernel.hpp"

namespace tokenyard::megakernel {

/// By the whole block, before it first meets.
DEVICE void ready_shared_memory(const RunParams& params, WorkerShared& shared) {
  const uint32_t self = thread::index();
  if (self == 0) {
    shared.failed = kNeverFailed;
    shared.ended = shared.stalled = shared.loop_ends = 0;
    shared.begun = 0;
    shared.follower = 0;
    shared.ahead_full.init(1);
    shared.ahead_empty.init(1);
  }
  // A slot is free once every compute warp has read it, and every lane that loads for tasks.
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

/// A packet that a worker's thread has taken. Its head is in registers: all of it is asked for, at
/// times when nothing else is under way.
struct Taken {
  Note note;
  Packet head;           ///< of a task
  const std::byte* at;   ///< in shared memory
  CountedSignal signal;  ///< of this thread, in a static run
  bool follows = false;  ///< in a dynamic run: what this thread will signal has its task on its way

  DEVICE const WaitRecord* wait_records() const {
    return reinterpret_cast<const WaitRecord*>(at + sizeof(Packet));
  }
  DEVICE const SignalRecord* signal_records() const {
    return reinterpret_cast<const SignalRecord*>(wait_records() + head.waits);
  }
  DEVICE const std::byte* args() const { return at + head.args_at; }
};

/// Arguments of so many bytes are in registers when a task begins.
inline constexpr size_t kArgsHeld = 32;

/// The compute warps of one block. All their threads go the same way: they part only inside a task,
/// and agree on failures when they meet.
template <class List>
class Worker {
 public:
  DEVICE Worker(Working& working)
      : working_(working),
        context_(working),
        dynamic_(List::kScheduled && working.params.dynamic.schedulers > 0),
        waiter_(working.keep((thread::index() < kWarpLanes ? working.compute_threads : 0) +
                             thread::index() - kWarpLanes)),
        traces_(working.keep(working.params.trace != nullptr && thread::index() == 0 ? 1u : 0u)),
        packet_full_(settled(working.shared.packet_full)),
        packet_empty_(settled(working.shared.packet_empty)) {}

  DEVICE void run() {
    if (exchange_hellos()) work();
    leave();
  }

  /// One task, whose packet comes first, as a kernel of its own does it: what a megakernel is
  /// measured against.
  DEVICE void run_one() {
    grid::wait_for_previous();
    const RingCursor first;
    if (await_packet(first) && run_task(first, working_.shared.notes[first.slot]))
      release(first.slot);
    if (first_thread()) store<Order::release, Scope::block>(&working_.shared.ended, 1);
  }

 private:
  DEVICE const RunParams& params() const { return working_.params; }
  DEVICE bool dynamic() const {
    if constexpr (List::kScheduled)
      return dynamic_;
    else
      return false;  // At compile time.
  }
  DEVICE bool first_thread() const { return thread::index() == 0; }

  /// Block 0 greets; every block hears all ranks, and that they begin the same run.
  DEVICE bool exchange_hellos() {
    const uint32_t length = run_length(params());
    if (block::index() == 0)
      for (uint32_t rank = thread::index(); rank < params().ranks; rank += context_.threads())
        // Release: this rank's host and kernels have read what the run before has left.
        store<Order::release, Scope::sys>(params().windows.hello(rank, params().rank),
                                          Stamped{params().run, length});
    for (uint32_t rank = thread::index(); rank < params().ranks; rank += context_.threads())
      hear(working_, rank);
    if (block::index() == 0 && first_thread())
      store<Order::relaxed, Scope::sys>(&params().record->started, params().run);
    return meet(working_);
  }

  DEVICE void work() {
    for (RingCursor packets;; packets.next(kPacketSlots)) {
      taken_ns_ = trace_time();
      if (!here_ && !await_packet(packets)) return;
      const Note note = working_.shared.notes[packets.slot];
      if (note.kind == NoteKind::task) {
        if (!run_task(packets, note)) return;
      } else {
        // Not without those whose wait for this packet has failed.
        if (!meet(working_) || note.kind == NoteKind::end || !turn(note)) return;
        here_ = false;
      }
      release(packets.slot);
    }
  }

  /// By all threads. Lanes of a warp go the same way from here to where they next meet.
  DEVICE bool await_packet(const RingCursor& packets) {
    Awaited what{.phase = phase_of(params(), RunPhase::packet), .rank = params().rank};
    Completion& full = packet_full_[packets.slot];
    const bool came =
        wait_until(working_.idle_deadline(), what, [&] { return full.done(packets.parity()); });
    if (warp::all(came)) return true;
    fail_worker(working_);
    meet(working_);
    return false;
  }

  /// Reads all it will need of the packet, before it waits for anything.
  DEVICE Taken take(const RingCursor& packets, const Note& note) {
    Taken taken{
        .note = note, .head = {}, .at = working_.shared.packets[packets.slot], .signal = {}};
    if (first_thread()) {
      RingCursor next = packets;
      next.next(kPacketSlots);
      working_.shared.next_here[packets.slot] = packet_full_[next.slot].done_now(next.parity());
    }
    taken.head = *reinterpret_cast<const Packet*>(taken.at);
    begin_iteration(note.iteration);
    context_.begin(taken.head.task, note.iteration);
    if (thread::index() < taken.head.signals) {
      const SignalRecord& record = taken.signal_records()[thread::index()];
      if (!dynamic())
        taken.signal = CountedSignal::of(params(), record);
      else if (record.launch == Launch::follower)
        taken.follows = bring_follower(working_, record);
    }
    return taken;
  }

  /// A thread an event, but not of the warp that signals: while that one fences what the task
  /// before has done, these look out already.
  DEVICE void await_events(const Taken& taken) {
    const uint32_t threads = context_.threads();
    uint32_t i = waiter_;
    // Only a packet of more events than there are threads has others than these.
    for (bool more = i < taken.head.waits; more; i += threads) {
      more = i + threads < taken.head.waits;
      const WaitRecord& wait = taken.wait_records()[i];
      // What schedulers count need not be looked at: the task came with it.
      if (!dynamic() || wait.lag > 0)
        await_event(working_, taken.head.task, wait, taken.note.iteration);
    }
  }

  /// The iteration's deadline begins with its first task.
  DEVICE void begin_iteration(uint64_t iteration) {
    if (begun_ && iteration == iteration_) return;
    begun_ = true;
    iteration_ = iteration;
    working_.began_ns = now_ns();
    if (!first_thread()) return;
    // Release: this thread has acquired the iteration's begin, and the ahead loader relies on it.
    store<Order::release, Scope::block>(&working_.shared.begun, iteration + 1);
  }

  DEVICE bool run_task(const RingCursor& packets, const Note& note) {
    Taken taken = take(packets, note);
    uint64_t begun_ns = 0;
    if constexpr (List::kOwnPaths) {
      if (!List::with_type(taken.head.type,
                           [&]<class Task>() { return run_as<Task>(packets, taken, begun_ns); }))
        return false;
    } else {
      if (!begin(taken, begun_ns)) return false;
      // No lambda with all of this in it: one so large would be called, and its captures' addresses
      // taken: the worker would lie in memory.
      List::run(taken.head.type, taken.args(), context_);
      if constexpr (!List::kSettles) read_again(packets.slot, taken);
      if (!end(packets, taken)) return false;
      if (List::loads_ahead(taken.head.type)) context_.release_ahead();
    }
    signal_rest(taken);
    trace(taken.head.task, taken.note.iteration, begun_ns);
    return true;
  }

  /// From the task's events to its signals.
  template <class Task>
  DEVICE bool run_as(const RingCursor& packets, const Taken& taken, uint64_t& begun_ns) {
    using Args = typename Task::Args;
    const Args& lies = List::template args_of<Task>(taken.args());
    if constexpr (sizeof(Args) <= kArgsHeld) {
      const Args args = lies;  // Before the task's events are awaited.
      if (!begin(taken, begun_ns)) return false;
      Task::run(context_, args);
    } else {
      if (!begin(taken, begun_ns)) return false;
      Task::run(context_, lies);
    }
    if (!end(packets, taken)) return false;
    if constexpr (LoadsAhead<Task>) context_.release_ahead();
    return true;
  }

  /// What registers need not keep while a task runs: its packet lies where it was.
  DEVICE void read_again(uint32_t slot, Taken& taken) {
    taken.note = working_.shared.notes[slot];
    taken.at = working_.shared.packets[slot];
    taken.head = *reinterpret_cast<const Packet*>(taken.at);
  }

  /// Until all that the task awaits has come.
  DEVICE bool begin(const Taken& taken, uint64_t& begun_ns) {
    // Nothing to agree on, where all know since they met last that the packet is here, and that is
    // all there is to wait for.
    if (!here_ || taken.head.waits > 0) {
      await_events(taken);
      if (!meet(working_)) return false;
    }
    begun_ns = trace_time();
    return true;
  }

  /// Of a task that has run; sends each thread's first signal.
  DEVICE bool end(const RingCursor& packets, const Taken& taken) {
    come_together(working_);
    // The look is on its way while the fence, which takes much longer, begins.
    const uint32_t failed_at = failed_meeting(working_);
    taken.signal.release();
    if (failed_at <= working_.meetings) return false;
    taken.signal.add_released();
    here_ = working_.shared.next_here[packets.slot] != 0;
    return true;
  }

  /// What the whole block did before it met is what the signals are about.
  DEVICE void signal_rest(const Taken& taken) {
    if (!dynamic()) {
      KEEP_ROLLED
      for (uint32_t i = thread::index() + context_.threads(); i < taken.head.signals;
           i += context_.threads())
        CountedSignal::of(params(), taken.signal_records()[i]).send();
      return;
    }
    const uint32_t threads = context_.threads();
    uint32_t i = thread::index();
    if (taken.follows) {
      // Relaxed: nobody looks at it but reports.
      add<Order::relaxed, Scope::gpu>(params().windows.own_counter(taken.signal_records()[i].event),
                                      taken.signal_records()[i].count);
      i += threads;
    }
    const bool counts = first_thread() && taken.head.counted != 0;
    if (i < taken.head.signals || counts) fence_for_events(params());
    KEEP_ROLLED
    for (; i < taken.head.signals; i += threads)
      signal_record(working_, taken.signal_records()[i], taken.note.iteration);
    if (!counts) return;
    // Relaxed: between fences.
    const uint64_t ended =
        fetch_add<Order::relaxed, Scope::gpu>(&params().workspace->tasks_ended, 1) + 1;
    if (ended != params().dynamic.counted * (taken.note.iteration + 1)) return;
    // The last task of the iteration passes on what all others did.
    fence_for_events(params());
    push_event(working_, params().rank, 0, kEnded);
  }

  /// The end of an iteration; false if it was the last.
  DEVICE bool turn(const Note& note) {
    ++done_;
    if (first_thread())
      add<Order::release, Scope::gpu>(&params().workspace->ended, 1);  // All that the block did.
    if (params().loop_event == kNoEvent) return true;
    if (first_thread()) await_loop(note.iteration);
    if (!meet(working_)) return false;
    return working_.shared.loop_ends == 0;
  }

  DEVICE void await_loop(uint64_t iteration) {
    const EventRecord event = params().events[params().loop_event];
    Awaited what{.phase = phase_of(params(), RunPhase::loop),
                 .rank = params().rank,
                 .expected = event.triggers * (iteration + 1)};
    if (await_counter(working_.deadline(), what,
                      params().windows.counter(params().rank, params().loop_event), true)) {
      // Relaxed: the event's signals come after it.
      const uint64_t last = load<Order::relaxed, Scope::sys>(params().windows.last(params().rank));
      working_.shared.loop_ends = last == iteration + 1;
      return;
    }
    stall(working_, {.what = Stalled::loop,
                     .event = params().loop_event,
                     .rank = params().rank,
                     .iteration = iteration,
                     .need = what.expected,
                     .have = what.seen});
  }

  /// By the whole warp: it needs the slot's packet and note no more.
  DEVICE void release(uint32_t slot) {
    warp::sync();
    if (warp::lane() == 0) packet_empty_[slot].arrive();
  }

  /// The compute warps do nothing more: loaders may stop.
  DEVICE void leave() {
    if (!first_thread()) return;
    params().progress[block::index()] = done_;
    if (params().trace != nullptr) params().trace_used[block::index()] = traced_;
    store<Order::release, Scope::block>(&working_.shared.ended, 1);
  }

  DEVICE uint64_t trace_time() const { return traces_ != 0 ? now_ns() : 0; }
  /// The newest records stay: a ring.
  DEVICE void trace(uint32_t task, uint64_t iteration, uint64_t begun_ns) {
    if (traces_ == 0) return;
    params().trace[block::index() * params().trace_records + traced_ % params().trace_records] = {
        .task = task,
        .unused = 0,
        .iteration = iteration,
        .taken_ns = taken_ns_,
        .begun_ns = begun_ns,
        .ended_ns = now_ns()};
    ++traced_;
  }

  Working& working_;
  Context context_;
  const bool dynamic_;
  const uint32_t waiter_;  ///< which of a task's events this thread awaits
  const uint32_t traces_;  ///< whether this thread does
  Completion *packet_full_, *packet_empty_;
  bool here_ = false;  ///< the packet that comes next has come, as all threads know alike
  bool begun_ = false;
  uint64_t iteration_ = 0, done_ = 0, taken_ns_ = 0;
  uint32_t traced_ = 0;
};

template <class List>
DEVICE void run_graph(const RunParams& params) {
  auto& shared = block::shared<WorkerShared>();
  ready_shared_memory(params, shared);
  block::sync();
  const Patience idle = idle_patience(params);
  Working working{.params = params,
                  .shared = shared,
                  .idle = idle,
                  .began_ns = now_ns(),
                  .settles = List::kSettles};
  if (List::kScheduled && block::index() >= params.workers) {
    if constexpr (List::kScheduled) Scheduler(working).run();
  } else if (warp::index() < params.compute_warps) {
    Worker<List>(working).run();
  } else if (loads_as(params, 1, kFeederLane)) {
    Feeder<List::kScheduled>(working).run();
  } else {
    load_for_tasks<List>(working);
  }
}

}  // namespace tokenyard::megakernel

/// Makes a kernel that runs the tasks of `List` (a TaskList), as DEFINE_KERNEL does: at the end of
/// a header that a *_host.cpp and a *_gpu.cu include.
#define DEFINE_MEGAKERNEL(name, List)                                         \
  DEVICE void name##_body(const ::tokenyard::megakernel::RunParams& params) { \
    ::tokenyard::megakernel::run_graph<List>(params);                         \
  }                                                                           \
  DEFINE_KERNEL(name, name##_body, ::tokenyard::megakernel::RunParams,        \
                ::tokenyard::megakernel::WorkerShared, ::tokenyard::megakernel::kThreadsMax)

/// The same for hosts only: tests.
#define DEFINE_HOST_MEGAKERNEL(name, List)                                    \
  DEVICE void name##_body(const ::tokenyard::megakernel::RunParams& params) { \
    ::tokenyard::megakernel::run_graph<List>(params);                         \
  }                                                                           \
  DEFINE_HOST_KERNEL(name, name##_body, ::tokenyard::megakernel::RunParams,   \
                     ::tokenyard::megakernel::WorkerShared, ::tokenyard::megakernel::kThreadsMax)
