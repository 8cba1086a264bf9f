/// A worker; run_params.hpp describes the protocol.
#pragma once

#include "megakernel/kernels/expected_kernel.hpp"
#include "megakernel/kernels/network_block_kernel.hpp"
#include "megakernel/kernels/scheduler_kernel.hpp"
#include "megakernel/kernels/streaming_kernel.hpp"
#include "megakernel/kernels/taken.hpp"

namespace tokenyard::megakernel {

/// Size up to which a task's arguments are loaded into registers before it begins.
inline constexpr size_t kArgsHeld = 32;

/// The compute warps of one block. Control flow is uniform over all their threads, except inside a
/// task; they agree on failures whenever they meet.
template <class List>
class Worker {
 public:
  TOKENYARD_DEVICE Worker(Working& working)
      : working_(working),
        context_(working),
        dynamic_(List::kScheduled && working.params.dynamic.schedulers > 0),
        waiter_(working.keep((thread::index() < kWarpLanes ? working.compute_threads : 0) +
                             thread::index() - kWarpLanes)),
        traces_(working.keep(working.params.trace != nullptr && thread::index() == 0 ? 1u : 0u)),
        packet_full_(settled(working.shared.packet_full)),
        packet_empty_(settled(working.shared.packet_empty)) {}

  TOKENYARD_DEVICE void run() {
    if (exchange_ready_words()) work();
    leave();
  }

  /// Runs one task, that of the first packet, as a kernel of its own would: the baseline against
  /// which a megakernel is measured.
  TOKENYARD_DEVICE void run_one() {
    grid::wait_for_previous();
    const RingCursor first;
    if (await_packet(first) && run_task(first, working_.shared.notes[first.slot]))
      release(first.slot);
    if (first_thread()) store<Order::release, Scope::block>(&working_.shared.ended, 1);
  }

 private:
  TOKENYARD_DEVICE const RunParams& params() const { return working_.params; }
  TOKENYARD_DEVICE bool dynamic() const {
    if constexpr (List::kScheduled)
      return dynamic_;
    else
      return false;  // Known at compile time.
  }
  TOKENYARD_DEVICE bool first_thread() const { return thread::index() == 0; }

  /// Block 0 sends this rank's ready word; every block awaits those of all ranks, and checks that
  /// they begin the same run.
  TOKENYARD_DEVICE bool exchange_ready_words() {
    const uint32_t length = run_length(params());
    if (block::index() == 0)
      for (uint32_t rank = thread::index(); rank < params().ranks; rank += context_.threads())
        if (params().windows.reaches(rank))
          // Release: this rank's host and kernels have read all results of the previous run.
          store<Order::release, Scope::sys>(params().windows.ready_word(rank, params().rank),
                                            Stamped{params().run, length});
    for (uint32_t rank = thread::index(); rank < params().ranks; rank += context_.threads())
      await_ready(working_, rank);
    if (block::index() == 0 && first_thread())
      store<Order::relaxed, Scope::sys>(&params().record->started, params().run);
    return meet(working_);
  }

  TOKENYARD_DEVICE void work() {
    for (RingCursor packets;; packets.next(kPacketSlots)) {
      taken_ns_ = trace_time();
      if (!here_ && !await_packet(packets)) return;
      const Note note = working_.shared.notes[packets.slot];
      if (is_task(note.kind) || (dynamic() && note.kind == NoteKind::expected)) {
        if (!run_task(packets, note)) return;
      } else {
        // Meet first: some thread's wait for this packet may have failed.
        if (!meet(working_) || note.kind == NoteKind::end || !turn(note)) return;
        here_ = false;
      }
      release(packets.slot);
    }
  }

  /// Called by all threads. Lanes of a warp stay converged from here to the next meeting.
  TOKENYARD_DEVICE bool await_packet(const RingCursor& packets) {
    Awaited what{.phase = phase_of(params(), RunPhase::packet), .rank = params().rank};
    Completion& full = packet_full_[packets.slot];
    const bool came =
        wait_until(working_.idle_deadline(), what, [&] { return full.done(packets.parity()); });
    if (warp::all(came)) return true;
    fail_worker(working_);
    meet(working_);
    return false;
  }

  /// Reads everything needed from the packet before any wait.
  TOKENYARD_DEVICE Taken take(const RingCursor& packets, const Note& note) {
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

  /// Awaits one event per thread, from the second warp on: these threads already poll while the
  /// first warp, which signals, fences the previous task.
  TOKENYARD_DEVICE void await_events(const Taken& taken) {
    const uint32_t threads = context_.threads();
    uint32_t i = waiter_;
    // Loops only if a packet has more events than there are threads.
    for (bool more = i < taken.head.waits; more; i += threads) {
      more = i + threads < taken.head.waits;
      const WaitRecord& wait = taken.wait_records()[i];
      // A follower's own event is complete: its signaller ran on this worker.
      if (!dynamic() || taken.note.kind != NoteKind::follower || wait.lag > 0)
        await_event(working_, taken.head.task, wait, taken.note.iteration);
    }
    if (dynamic() && taken.note.kind != NoteKind::follower) await_begin(taken.note.iteration);
  }

  // ---- dynamic runs (expected_kernel.hpp)

  /// Orders the next packet, by the thread that watches the slot: while this task runs, the feeder
  /// brings its follower or the packet that the ticket should bring.
  TOKENYARD_DEVICE void order_next(const Packet& head, bool ticket_used) {
    if (waiter_ == 0) order_packet(working_, PacketOrder::next(head.follower, ticket_used));
  }

  /// Waits until a task for the worker's ticket has arrived and, if it is the expected one, all its
  /// events are complete: then it runs. Otherwise the feeder has been told which packet to bring
  /// instead. `stop` also stands for a failed run.
  TOKENYARD_DEVICE Verdict::Kind await_expected(const RingCursor& packets, Taken& taken) {
    const uint64_t iteration = taken.note.iteration;
    if (waiter_ == 0) look_out(working_, packets.slot, iteration);
    for (uint32_t i = waiter_ == 0 ? context_.threads() : waiter_; i < taken.head.waits;
         i += context_.threads())
      await_expected_event(working_, taken.wait_records()[i], iteration);
    await_begin(iteration);
    if (!meet(working_)) return Verdict::Kind::stop;
    // Relaxed: it was written before the meeting.
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

  /// Acquires everything before the iteration's begin, by one thread, once per iteration.
  TOKENYARD_DEVICE void await_begin(uint64_t iteration) {
    if (waiter_ != 1 || seen_begun_ > iteration) return;
    if (await_iteration(working_, iteration)) seen_begun_ = iteration + 1;
  }

  TOKENYARD_DEVICE void publish_begun_once(uint64_t iteration) {
    if (published_begun_ > iteration) return;
    published_begun_ = iteration + 1;
    publish_begun(iteration);
  }

  /// Starts the iteration's deadline, with its first task.
  TOKENYARD_DEVICE void begin_iteration(uint64_t iteration) {
    if (begun_ && iteration == iteration_) return;
    begun_ = true;
    iteration_ = iteration;
    working_.began_ns = now_ns();
    if (!dynamic()) publish_begun(iteration);
  }
  TOKENYARD_DEVICE void publish_begun(uint64_t iteration) {
    if (!first_thread()) return;
    // Release: this thread has acquired the iteration's begin, on which the ahead loader relies.
    store<Order::release, Scope::block>(&working_.shared.begun, iteration + 1);
  }

  TOKENYARD_DEVICE bool run_task(const RingCursor& packets, const Note& note) {
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
      // Not inside one lambda: a large lambda would not be inlined, and capturing by address would
      // force the worker into memory.
      List::run(taken.head.type, taken.args(), context_);
      if constexpr (!List::kSettles) read_again(packets.slot, taken);
      if (!end(packets, taken)) return false;
      if (List::loads_ahead(taken.head.type)) context_.release_ahead();
    }
    signal_rest(taken);
    trace(taken.head.task, taken.note.iteration, begun_ns);
    return true;
  }

  /// Does everything from the task's events to its signals.
  template <class Task>
  TOKENYARD_DEVICE bool run_as(const RingCursor& packets, const Taken& taken, uint64_t& begun_ns) {
    using Args = typename Task::Args;
    const Args& lies = List::template args_of<Task>(taken.args());
    if constexpr (sizeof(Args) <= kArgsHeld) {
      const Args args = lies;  // Loaded before the task's events are awaited.
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

  /// Reloads values that registers need not hold while a task runs; its packet is still in place.
  TOKENYARD_DEVICE void read_again(uint32_t slot, Taken& taken) {
    taken.note.iteration = working_.shared.notes[slot].iteration;
    taken.at = working_.shared.packets[slot];
    taken.head = *reinterpret_cast<const Packet*>(taken.at);
  }

  /// Waits until all events of the task are complete.
  TOKENYARD_DEVICE bool begin(const Taken& taken, uint64_t& begun_ns) {
    // No meeting is needed if all threads learned at the last one that the packet is here, and the
    // task waits for nothing else.
    if ((!here_ || taken.head.waits > 0) && !(dynamic() && taken.met)) {
      await_events(taken);
      if (!meet(working_)) return false;
    }
    if (dynamic()) publish_begun_once(taken.note.iteration);
    begun_ns = trace_time();
    return true;
  }

  /// Ends a task that has run, and sends each thread's first signal.
  TOKENYARD_DEVICE bool end(const RingCursor& packets, const Taken& taken) {
    come_together(working_);
    // This load overlaps with the fence, which takes much longer.
    const uint32_t failed_at = failed_meeting(working_);
    if (dynamic()) taken.signal.announce();
    taken.signal.release();
    if (failed_at <= working_.meetings) return false;
    taken.signal.add_released();
    here_ = working_.shared.next_here[packets.slot] != 0;
    return true;
  }

  /// Sends the remaining signals. They cover all work that the block did before its last meeting.
  TOKENYARD_DEVICE void signal_rest(const Taken& taken) {
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = thread::index() + context_.threads(); i < taken.head.signals;
         i += context_.threads()) {
      const SignalRecord& record = taken.signal_records()[i];
      CountedSignal::of(params(), record).send(dynamic());
    }
    if (!dynamic()) return;
    // Relaxed: only reports read it.
    if (taken.led_on != 0) add<Order::relaxed, Scope::gpu>(taken.signal.counter, taken.led_on);
    // Release: a scheduler that sees the iteration's last task end sees all its effects.
    if (first_thread() && taken.head.counted != 0)
      add<Order::release, Scope::gpu>(&params().workspace->tasks_ended, 1);
  }

  /// Ends an iteration. Returns false if it was the last.
  TOKENYARD_DEVICE bool turn(const Note& note) {
    ++done_;
    if (first_thread())
      add<Order::release, Scope::gpu>(&params().workspace->ended, 1);  // Covers the whole block.
    if (params().loop_event == kNoEvent) return true;
    // A worker without tasks begins the iteration here.
    begin_iteration(note.iteration);
    if (first_thread()) await_loop(note.iteration);
    if (!meet(working_)) return false;
    return working_.shared.loop_ends == 0;
  }

  TOKENYARD_DEVICE void await_loop(uint64_t iteration) {
    const EventRecord event = params().events[params().loop_event];
    Awaited what{.phase = phase_of(params(), RunPhase::loop),
                 .rank = params().rank,
                 .expected = event.triggers * (iteration + 1)};
    if (await_counter(working_.deadline(), what,
                      params().windows.counter(params().rank, params().loop_event), true)) {
      // Relaxed: the event's signals, which are acquired, follow it.
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

  /// Frees the slot, by the whole warp, once it no longer needs the slot's packet and note.
  TOKENYARD_DEVICE void release(uint32_t slot) {
    warp::sync();
    if (warp::lane() == 0) packet_empty_[slot].arrive();
  }

  /// Publishes that the compute warps have finished, so that loaders may stop.
  TOKENYARD_DEVICE void leave() {
    if (!first_thread()) return;
    params().progress[block::index()] = done_;
    if (params().trace != nullptr) params().trace_used[block::index()] = traced_;
    store<Order::release, Scope::block>(&working_.shared.ended, 1);
  }

  TOKENYARD_DEVICE uint64_t trace_time() const { return traces_ != 0 ? now_ns() : 0; }
  /// Records a task in a ring, which keeps the newest.
  TOKENYARD_DEVICE void trace(uint32_t task, uint64_t iteration, uint64_t begun_ns) {
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
  const uint32_t waiter_;  ///< index of the task's event that this thread awaits
  const uint32_t traces_;  ///< whether this thread records traces
  Completion *packet_full_, *packet_empty_;
  bool here_ = false;  ///< the next packet has arrived, and all threads know it
  bool begun_ = false;
  uint64_t iteration_ = 0, done_ = 0, taken_ns_ = 0;
  uint64_t seen_begun_ = 0, published_begun_ = 0;  ///< dynamic runs: the iteration plus one
  uint32_t traced_ = 0;
};

template <class List>
TOKENYARD_DEVICE void run_graph(const RunParams& params) {
  auto& shared = block::shared<WorkerShared>();
  ready_shared_memory(params, shared);
  block::sync();
  const WaitContext idle = idle_wait_context(params);
  Working working{.params = params,
                  .shared = shared,
                  .idle = idle,
                  .began_ns = now_ns(),
                  .settles = List::kSettles};
  if (params.network.blocks != 0 && block::index() == params.workers) {
    run_network_block(&params);
  } else if (List::kScheduled && block::index() >= params.workers) {
    if constexpr (List::kScheduled) Scheduler(working).run();
  } else if (warp::index() < params.compute_warps) {
    Worker<List>(working).run();
    leave_to_network(params);
  } else if (loads_as(params, 1, kFeederLane)) {
    Feeder<List::kScheduled>(working).run();
  } else {
    load_for_tasks<List>(working);
  }
}

}  // namespace tokenyard::megakernel

/// Defines a kernel that runs the tasks of `List` (a TaskList). Used like TOKENYARD_DEFINE_KERNEL:
/// at the end of a header that a *_host.cpp and a *_gpu.cu include.
#define TOKENYARD_DEFINE_MEGAKERNEL(name, List)                                         \
  TOKENYARD_DEVICE void name##_body(const ::tokenyard::megakernel::RunParams& params) { \
    ::tokenyard::megakernel::run_graph<List>(params);                                   \
  }                                                                                     \
  TOKENYARD_DEFINE_KERNEL(name, name##_body, ::tokenyard::megakernel::RunParams,        \
                          ::tokenyard::megakernel::WorkerShared,                        \
                          ::tokenyard::megakernel::kThreadsMax)

/// Defines the same for hosts only, for tests.
#define TOKENYARD_DEFINE_HOST_MEGAKERNEL(name, List)                                    \
  TOKENYARD_DEVICE void name##_body(const ::tokenyard::megakernel::RunParams& params) { \
    ::tokenyard::megakernel::run_graph<List>(params);                                   \
  }                                                                                     \
  TOKENYARD_DEFINE_HOST_KERNEL(name, name##_body, ::tokenyard::megakernel::RunParams,   \
                               ::tokenyard::megakernel::WorkerShared,                   \
                               ::tokenyard::megakernel::kThreadsMax)
