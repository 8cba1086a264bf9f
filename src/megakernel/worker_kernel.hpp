/// A worker: run_params.hpp tells how it works.
#pragma once

#include "megakernel/scheduler_kernel.hpp"
#include "megakernel/streaming_kernel.hpp"

namespace tokenyard::megakernel {

/// By the whole block, before it first meets.
DEVICE void ready_shared_memory(const RunParams& params, WorkerShared& shared) {
  const uint32_t self = thread::index();
  if (self == 0) {
    shared.failed = shared.ended = shared.stalled = shared.loop_ends = 0;
    shared.begun = 0;
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

  DEVICE const WaitRecord* wait_records() const {
    return reinterpret_cast<const WaitRecord*>(at + sizeof(Packet));
  }
  DEVICE const SignalRecord* signal_records() const {
    return reinterpret_cast<const SignalRecord*>(wait_records() + head.waits);
  }
  DEVICE const std::byte* args() const { return at + head.args_at; }
};

/// The compute warps of one block. All their threads go the same way: they part only inside a task,
/// and agree on failures when they meet.
template <class List>
class Worker {
 public:
  DEVICE Worker(Working& working)
      : working_(working),
        context_(working),
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
    Taken taken{};
    if (await_packet(first))
      taken = take(first.slot);
    else
      fail_worker(working_);
    if (meet(working_) && run_task(taken)) release(first.slot);
    if (first_thread()) store<Order::release, Scope::block>(&working_.shared.ended, 1);
  }

 private:
  DEVICE const RunParams& params() const { return working_.params; }
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
      Taken taken{};
      if (await_packet(packets))
        taken = take(packets.slot);
      else
        fail_worker(working_);
      // Threads whose wait has failed have taken nothing, and leave here with all others.
      if (!meet(working_)) return;
      if (taken.note.kind == NoteKind::end) return;
      if (!(taken.note.kind == NoteKind::task ? run_task(taken) : turn(taken.note))) return;
      release(packets.slot);
    }
  }

  DEVICE bool await_packet(const RingCursor& packets) {
    Awaited what{.phase = phase_of(params(), RunPhase::packet), .rank = params().rank};
    Completion& full = packet_full_[packets.slot];
    return wait_until(working_.idle_deadline(), what, [&] { return full.done(packets.parity()); });
  }

  /// Reads all it will need of the packet, and waits for what the task awaits.
  DEVICE Taken take(uint32_t slot) {
    Taken taken{.note = working_.shared.notes[slot], .head = {}, .at = nullptr, .signal = {}};
    if (taken.note.kind != NoteKind::task) return taken;
    taken.at = working_.shared.packets[slot];
    taken.head = *reinterpret_cast<const Packet*>(taken.at);
    begin_iteration(taken.note.iteration);
    // What schedulers count need not be looked at: the task came with it.
    const bool counted = params().dynamic.schedulers > 0;
    if (!counted && thread::index() < taken.head.signals)
      taken.signal = CountedSignal::of(params(), taken.signal_records()[thread::index()]);
    for (uint32_t i = thread::index(); i < taken.head.waits; i += context_.threads()) {
      const WaitRecord& wait = taken.wait_records()[i];
      if (!counted || wait.lag > 0)
        await_event(working_, taken.head.task, wait, taken.note.iteration);
    }
    return taken;
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

  DEVICE bool run_task(const Taken& taken) {
    const uint64_t begun_ns = trace_time();
    context_.begin(taken.head.task, taken.note.iteration);
    List::run(taken.head.type, taken.args(), context_);
    if (!meet(working_)) return false;
    if (List::loads_ahead(taken.head.type)) context_.release_ahead();
    signal(taken);
    trace(taken.head.task, taken.note.iteration, begun_ns);
    return true;
  }

  /// What the whole block did before it met is what the signals are about.
  DEVICE void signal(const Taken& taken) {
    const bool dynamic = params().dynamic.schedulers > 0;
    if (!dynamic) {
      if (thread::index() < taken.head.signals) taken.signal.send();
      for (uint32_t i = thread::index() + context_.threads(); i < taken.head.signals;
           i += context_.threads())
        CountedSignal::of(params(), taken.signal_records()[i]).send();
      return;
    }
    if (thread::index() < taken.head.signals || first_thread()) fence_for_events(params());
    for (uint32_t i = thread::index(); i < taken.head.signals; i += context_.threads())
      signal_record(working_, taken.signal_records()[i]);
    if (!first_thread()) return;
    // Relaxed: between fences.
    const uint64_t ended =
        fetch_add<Order::relaxed, Scope::gpu>(&params().workspace->tasks_ended, 1) + 1;
    if (ended % params().tasks != 0) return;
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

  DEVICE uint64_t trace_time() const {
    return params().trace != nullptr && first_thread() ? now_ns() : 0;
  }
  /// The newest records stay: a ring.
  DEVICE void trace(uint32_t task, uint64_t iteration, uint64_t begun_ns) {
    if (params().trace == nullptr || !first_thread()) return;
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
  Completion *packet_full_, *packet_empty_;
  bool begun_ = false;
  uint64_t iteration_ = 0;
  uint64_t done_ = 0;
  uint64_t taken_ns_ = 0;
  uint32_t traced_ = 0;
};

template <class List>
DEVICE void run_graph(const RunParams& params) {
  auto& shared = block::shared<WorkerShared>();
  ready_shared_memory(params, shared);
  block::sync();
  const Patience idle = idle_patience(params);
  Working working{.params = params, .shared = shared, .idle = idle, .began_ns = now_ns()};
  if (block::index() >= params.workers) {
    Scheduler(working).run();
  } else if (warp::index() < params.compute_warps) {
    Worker<List>(working).run();
  } else if (loads_as(params, 1, kFeederLane)) {
    Feeder(working).run();
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
