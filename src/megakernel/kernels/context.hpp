/// What a task sees of the worker that runs it.
///
///     struct Scale {
///       static constexpr const char* kName = "scale";
///       struct Args { const float* from; float* to; uint32_t count; float factor; };
///       static DEVICE void run(Context& context, const Args& args) {
///         for (uint32_t i = context.thread(); i < args.count; i += context.threads())
///           args.to[i] = args.factor * args.from[i];
///       }
///     };
///
/// A task is run by all compute threads of a block. What it reads has been written, what it writes
/// is visible to whoever waits for its signals; it needs no barrier at its begin or end. Optional
/// members:
///
///     struct Shared {...};      scratch of the block, not initialised
///     static DEVICE StreamedRows stream(const Args&, uint32_t warp, uint32_t warps);
///                               what each warp streams: read while tasks before this one still
///                               run, so it must be memory that no task writes
///     static DEVICE void ahead(Ahead&, const Args&);
///                               what the block loads once the iteration has begun, while tasks
///                               before this one still run: nothing that they write
///     static constexpr ArgField kFields[];       for graphs that are not written in C++
#pragma once

#include "device/part.hpp"
#include "device/unroll.hpp"
#include "megakernel/kernels/launch_kernel.hpp"
#include "tokenyard/megakernel/event.hpp"

namespace tokenyard::megakernel {

/// Rows of constant memory that a warp streams one after the other, each in pieces: its units.
/// 16-byte aligned; a piece is at most StreamPlan::unit_bytes.
struct StreamedRows {
  const std::byte* from;
  uint64_t row_stride;
  uint32_t rows, row_bytes, piece_bytes;

  DEVICE uint32_t units() const { return rows * ((row_bytes + piece_bytes - 1) / piece_bytes); }
};

/// By the loader: where `ahead` of a task puts what it loads.
class Ahead {
 public:
  DEVICE Ahead(std::byte* to, Completion& full) : to_(to), full_(full) {}
  /// Once, before any load: of all loads together.
  DEVICE void expect(uint32_t bytes) { full_.arrive_expect(bytes); }
  DEVICE void load(uint32_t at, const void* from, uint32_t bytes) {
    if (bytes > 0) bulk::load(to_ + at, from, bytes, full_);
  }

 private:
  std::byte* to_;
  Completion& full_;
};

class Context {
 public:
  DEVICE explicit Context(const Working& working)
      : working_(working),
        ring_(unit_slot(working.params, warp::index(), 0)),
        full_(settled(working.shared.unit_full[warp::index()])),
        empty_(settled(working.shared.unit_empty[warp::index()])) {}

  DEVICE uint32_t rank() const { return working_.params.rank; }
  DEVICE uint32_t ranks() const { return working_.params.ranks; }
  /// Counts through all runs of the object.
  DEVICE uint64_t iteration() const { return iteration_; }
  /// Within this run.
  DEVICE uint32_t iteration_of_run() const {
    return static_cast<uint32_t>(iteration_ - working_.params.first);
  }

  DEVICE uint32_t thread() const { return thread::index(); }
  DEVICE uint32_t threads() const { return working_.compute_threads; }
  DEVICE uint32_t warp() const { return warp::index(); }
  DEVICE uint32_t warps() const { return working_.params.compute_warps; }
  /// The task's threads meet; orders their memory accesses.
  DEVICE void sync() const { NamedBarrier(WorkerBarrier::compute).sync(threads()); }
  /// Whether the run has failed here: whatever the task computes then is thrown away. Threads may
  /// get different answers, so none may skip a sync() on its strength.
  DEVICE bool failed() const {
    return load<Order::relaxed, Scope::block>(&working_.shared.failed) != kNeverFailed;
  }
  template <class Shared>
  DEVICE Shared& shared() const {
    return *reinterpret_cast<Shared*>(scratch(working_.params));
  }

  /// Units that a warp may hold at a time.
  DEVICE uint32_t ring_units() const { return working_.params.streams.depth; }
  /// By a whole warp: its next units, once they have been loaded. False if the run has failed; then
  /// they may still be on their way, and nobody may read them. Lanes may get different answers.
  template <uint32_t kUnits>
  DEVICE bool next_units(const std::byte* (&units)[kUnits]) {
    RingCursor at = units_;
    UNROLL
    for (uint32_t i = 0; i < kUnits; ++i) {
      units[i] = ring_ + at.slot * working_.params.streams.unit_bytes;
      at.next(ring_units());
    }
    at = units_;
    // One wait in the code, however many units: a GPU fetches code from as far away as data.
    KEEP_ROLLED
    for (uint32_t i = 0; i < kUnits && !lost_; ++i) {
      lost_ = !await_unit(at);
      at.next(ring_units());
    }
    return !lost_;
  }
  /// Null if the run has failed.
  DEVICE const std::byte* next_unit() {
    const std::byte* unit[1];
    return next_units(unit) ? unit[0] : nullptr;
  }
  /// By a whole warp, which has read them: the places of the oldest units may be loaded again. Not
  /// those of units that have not come, else their loader would lose count of what has landed.
  template <uint32_t kUnits>
  DEVICE void release_units() {
    warp::sync();
    KEEP_ROLLED
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (warp::lane() == 0 && !lost_) empty_[units_.slot].arrive();
      units_.next(ring_units());
    }
  }
  DEVICE void release_unit() { release_units<1>(); }

  /// By every thread that reads it, in every run of a task that has one: what its `ahead` has
  /// loaded, or null if the run has failed. May be written to; whoever does calls fence_async()
  /// after it.
  DEVICE std::byte* loaded_ahead() {
    Completion& full = working_.shared.ahead_full;
    Awaited what{.phase = phase_of(working_.params, RunPhase::units), .rank = rank()};
    if (wait_until(working_.deadline(), what, [&] { return full.done(ahead_ & 1); }))
      return ahead_area(working_.params);
    stall(working_,
          {.what = Stalled::units, .task = task_, .rank = rank(), .iteration = iteration_});
    return nullptr;
  }
  /// Until words that carry an event have come. Gives up when the run fails: what they hold then
  /// means nothing, and neither does what the task makes of it.
  template <class Condition>
  DEVICE void await_carried(Event event, Condition condition) const {
    Awaited what{.phase = task_, .rank = rank()};
    if (!wait_until(working_.deadline(), what, condition))
      stall(working_, {.what = Stalled::carried,
                       .task = task_,
                       .event = event.id,
                       .rank = rank(),
                       .iteration = iteration_});
  }

  /// By one thread: signals a dynamic event n times. What this thread did before, and the others
  /// before they last met, is what the event is about. Of another rank only in static runs. More
  /// than dynamic_max, or than expect() has announced, fail the run.
  DEVICE void signal(Event event, uint32_t to_rank, uint32_t count) const {
    if (count == 0) return;
    if (to_rank != rank())  // Its own expect(), or its host, sees whether all were too many.
      add<Order::release, Scope::sys>(working_.params.windows.counter(to_rank, event.id), count);
    const uint64_t surplus = to_rank == rank() ? count_in(event, count) : 0;
    const uint32_t most = working_.params.events[event.id].dynamic_max;
    if (count > most) return refuse(Stalled::surplus, event, most, count);
    if (surplus == 0) return;
    // Relaxed: for people. Without an announcement nobody knows more than the bound.
    const Promise promise{load<Order::relaxed, Scope::gpu>(
        promise_beside(working_.params.windows.own_counter(event.id)))};
    const bool published = promise.is_of(iteration_);
    const uint64_t expected = published ? promise.signals() : most;
    refuse(Stalled::surplus, event, expected, expected + surplus + (published ? 0 : 1));
  }
  /// By one thread: the event of this rank will get just n signals in this iteration. n is at most
  /// the event's dynamic_max; more fails the run. What this thread did before is what the event is
  /// about, too.
  DEVICE void expect(Event event, uint32_t n) const {
    const uint32_t most = working_.params.events[event.id].dynamic_max;
    if (n > most) return refuse(Stalled::event, event, most, n);
    // Relaxed: read by whoever finds too many signals, to name the number.
    store<Order::relaxed, Scope::gpu>(promise_beside(working_.params.windows.own_counter(event.id)),
                                      Promise::of(iteration_, n).bits);
    const uint64_t surplus = count_in(event, dynamic_triggers(most) - n);
    if (surplus > 0) refuse(Stalled::surplus, event, n, n + surplus);
  }
  /// By one thread, before its task signals the loop's event or one that comes before it: this
  /// iteration is the last, on that rank. Relaxed: the signal publishes it.
  DEVICE void end_loop(uint32_t rank) const {
    store<Order::relaxed, Scope::sys>(working_.params.windows.last(rank), iteration_ + 1);
  }
  DEVICE void end_loop() const { end_loop(rank()); }

  /// For the worker.
  DEVICE void begin(uint32_t task, uint64_t iteration) {
    begin_part(task);
    task_ = task;
    iteration_ = iteration;
  }
  /// For the worker, after a task that loads ahead: the place may be loaded again.
  DEVICE void release_ahead() {
    if (thread() == 0) working_.shared.ahead_empty.arrive();
    ++ahead_;
  }

 private:
  /// Signals an event of this rank; by how many signals it has now more than this iteration's.
  DEVICE uint64_t count_in(Event event, uint32_t count) const {
    const EventRecord& record = working_.params.events[event.id];
    const uint64_t before =
        fetch_add<Order::release, Scope::sys>(working_.params.windows.own_counter(event.id), count);
    // Of an event that nobody awaits, signals of the next iteration may have come already.
    const uint64_t most = uint64_t{record.triggers} * (iteration_ + 1);
    return record.awaited != 0 && before + count > most ? before + count - most : 0;
  }
  /// Fails the run: a number of signals is beyond what was declared.
  DEVICE void refuse(Stalled what, Event event, uint64_t expected, uint64_t seen) const {
    working_.deadline().fail(Failure::refused,
                             {.phase = task_, .rank = rank(), .expected = expected, .seen = seen});
    stall(working_, {.what = what,
                     .task = task_,
                     .event = event.id,
                     .rank = rank(),
                     .iteration = iteration_,
                     .need = expected,
                     .have = seen});
  }
  DEVICE bool await_unit(const RingCursor& unit) const {
    Completion& full = full_[unit.slot];
    Awaited what{.phase = phase_of(working_.params, RunPhase::units), .rank = rank()};
    if (wait_until(working_.deadline(), what, [&] { return full.done(unit.parity()); }))
      return true;
    stall(working_,
          {.what = Stalled::units, .task = task_, .rank = rank(), .iteration = iteration_});
    return false;
  }

  const Working& working_;
  std::byte* ring_;            ///< this warp's
  Completion *full_, *empty_;  ///< of its units
  uint32_t task_ = 0;
  uint64_t iteration_ = 0;
  uint32_t ahead_ = 0;  ///< tasks that loaded ahead so far
  RingCursor units_;
  /// A unit did not come in time. Whether a later one has come cannot be told: laps share parities.
  bool lost_ = false;
};

}  // namespace tokenyard::megakernel
