/// A worker: run_params.hpp tells how it works.
#pragma once

#include "megakernel/kernels/expected_kernel.hpp"
#include "megakernel/kernels/scheduler_kernel.hpp"
#include "megakernel/kernels/streaming_kernel.hpp"
#include "megakernel/kernels/taken.hpp"

namespace tokenyard::megakernel {

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
    if (exchange_ready_words()) work();
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
  DEVICE bool exchange_ready_words() {
    const uint32_t length = run_length(params());
    if (block::index() == 0)
      for (uint32_t rank = thread::index(); rank < params().ranks; rank += context_.threads())
        // Release: this rank's host and kernels have read what the run before has left.
        store<Order::release, Scope::sys>(params().windows.ready_word(rank, params().rank),
                                          Stamped{params().run, length});
    for (uint32_t rank = thread::index(); rank < params().ranks; rank += context_.threads())
      await_ready(working_, rank);
    if (block::index() == 0 && first_thread())
      store<Order::relaxed, Scope::sys>(&params().record->started, params().run);
    return meet(working_);
  }

  DEVICE void work() {
    for (RingCursor packets;; packets.next(kPacketSlots)) {
      taken_ns_ = trace_time();
      if (!here_ && !await_packet(packets)) return;
      const Note note = working_.shared.notes[packets.slot];
      if (is_task(note.kind) || (dynamic() && note.kind == NoteKind::expected)) {
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
    if (!dynamic() || note.kind != NoteKind::expected) begin_iteration(note.iteration);
    if (dynamic() && is_task(note.kind)) order_next(taken.head, false);
    context_.begin(taken.head.task, note.iteration);
    if (thread::index() < taken.head.signals) {
      const SignalRecord& record = taken.signal_records()[thread::index()];
      taken.signal = CountedSignal::of(params(), record);
      if (dynamic() && record.follows != 0) {
        taken.led_on = taken.signal.count;
        taken.signal.count = 0;
      }
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
      // A follower's own event has come: its task has run here.
      if (!dynamic() || taken.note.kind != NoteKind::follower || wait.lag > 0)
        await_event(working_, taken.head.task, wait, taken.note.iteration);
    }
    if (dynamic() && taken.note.kind != NoteKind::follower) await_begin(taken.note.iteration);
  }

  // ---- dynamic runs (expected_kernel.hpp)

  /// By the thread that looks out for what comes: the feeder brings the follower of this task, or
  /// what the ticket should bring, while it runs.
  DEVICE void order_next(const Packet& head, bool ticket_used) {
    if (waiter_ == 0) order_packet(working_, PacketOrder::next(head.follower, ticket_used));
  }

  /// Until what the worker's ticket brings has come and, if it is what was expected, all that it
  /// awaits: then it runs. Else the feeder has been told what to bring instead. Whether the run
  /// stops, or has failed, is one to the caller.
  DEVICE Verdict::Kind await_expected(const RingCursor& packets, Taken& taken) {
    const uint64_t iteration = taken.note.iteration;
    if (waiter_ == 0) look_out(working_, packets.slot, iteration);
    for (uint32_t i = waiter_ == 0 ? context_.threads() : waiter_; i < taken.head.waits;
         i += context_.threads())
      await_expected_event(working_, taken.wait_records()[i], iteration);
    await_begin(iteration);
    if (!meet(working_)) return Verdict::Kind::stop;
    // Relaxed: it lies before the meeting.
    const Verdict verdict{load<Order::relaxed, Scope::block>(&working_.shared.verdict)};
    const Verdict::Kind kind = verdict.at(working_.meetings);
    if (first_thread())
      // Relaxed: see Note.
      store<Order::relaxed, Scope::block>(
          &working_.shared.notes[packets.slot].kind,
          kind == Verdict::Kind::run ? NoteKind::task : NoteKind::dropped);
    here_ = false;
    taken.met = true;
    if (kind == Verdict::Kind::run) begin_iteration(iteration);
    return kind;
  }

  /// By one thread, once an iteration: what was done before the iteration began.
  DEVICE void await_begin(uint64_t iteration) {
    if (waiter_ != 1 || seen_begun_ > iteration) return;
    if (await_iteration(working_, iteration)) seen_begun_ = iteration + 1;
  }

  DEVICE void publish_begun_once(uint64_t iteration) {
    if (published_begun_ > iteration) return;
    published_begun_ = iteration + 1;
    publish_begun(iteration);
  }

  /// The iteration's deadline begins with its first task.
  DEVICE void begin_iteration(uint64_t iteration) {
    if (begun_ && iteration == iteration_) return;
    begun_ = true;
    iteration_ = iteration;
    working_.began_ns = now_ns();
    if (!dynamic()) publish_begun(iteration);
  }
  DEVICE void publish_begun(uint64_t iteration) {
    if (!first_thread()) return;
    // Release: this thread has acquired the iteration's begin, and the ahead loader relies on it.
    store<Order::release, Scope::block>(&working_.shared.begun, iteration + 1);
  }

  DEVICE bool run_task(const RingCursor& packets, const Note& note) {
    Taken taken = take(packets, note);
    if (dynamic() && note.kind == NoteKind::expected) {
      const Verdict::Kind kind = await_expected(packets, taken);
      if (kind != Verdict::Kind::run) return kind == Verdict::Kind::drop;
    }
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
    taken.note.iteration = working_.shared.notes[slot].iteration;
    taken.at = working_.shared.packets[slot];
    taken.head = *reinterpret_cast<const Packet*>(taken.at);
  }

  /// Until all that the task awaits has come.
  DEVICE bool begin(const Taken& taken, uint64_t& begun_ns) {
    // Nothing to agree on, where all know since they met last that the packet is here, and that is
    // all there is to wait for.
    if ((!here_ || taken.head.waits > 0) && !(dynamic() && taken.met)) {
      await_events(taken);
      if (!meet(working_)) return false;
    }
    if (dynamic()) publish_begun_once(taken.note.iteration);
    begun_ns = trace_time();
    return true;
  }

  /// Of a task that has run; sends each thread's first signal.
  DEVICE bool end(const RingCursor& packets, const Taken& taken) {
    come_together(working_);
    // The look is on its way while the fence, which takes much longer, begins.
    const uint32_t failed_at = failed_meeting(working_);
    if (dynamic()) taken.signal.announce();
    taken.signal.release();
    if (failed_at <= working_.meetings) return false;
    taken.signal.add_released();
    here_ = working_.shared.next_here[packets.slot] != 0;
    return true;
  }

  /// What the whole block did before it met is what the signals are about.
  DEVICE void signal_rest(const Taken& taken) {
    KEEP_ROLLED
    for (uint32_t i = thread::index() + context_.threads(); i < taken.head.signals;
         i += context_.threads()) {
      const SignalRecord& record = taken.signal_records()[i];
      CountedSignal::of(params(), record).send(dynamic());
    }
    if (!dynamic()) return;
    // Relaxed: nobody looks at it but reports.
    if (taken.led_on != 0) add<Order::relaxed, Scope::gpu>(taken.signal.counter, taken.led_on);
    // Release: a scheduler that has seen the last task of the iteration end knows all.
    if (first_thread() && taken.head.counted != 0)
      add<Order::release, Scope::gpu>(&params().workspace->tasks_ended, 1);
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
  uint64_t seen_begun_ = 0, published_begun_ = 0;  ///< in dynamic runs: one more than the iteration
  uint32_t traced_ = 0;
};

template <class List>
DEVICE void run_graph(const RunParams& params) {
  auto& shared = block::shared<WorkerShared>();
  ready_shared_memory(params, shared);
  block::sync();
  const WaitContext idle = idle_wait_context(params);
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
