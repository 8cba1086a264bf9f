/// The worker as its task sees it.
///
///     struct Scale {
///       static constexpr const char* kName = "scale";
///       struct Args { const float* from; float* to; uint32_t count; float factor; };
///       static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
///         for (uint32_t i = context.thread(); i < args.count; i += context.threads())
///           args.to[i] = args.factor * args.from[i];
///       }
///     };
///
/// All compute threads of a block run a task together. Its inputs are visible when it begins, its
/// results are visible to tasks that wait for its signals, and it needs no barrier at its begin or
/// end. Optional members:
///
///     struct Shared {...};      scratch of the block, not initialised
///     static TOKENYARD_DEVICE StreamedRows stream(const Args&, uint32_t warp, uint32_t warps);
///                               rows that each warp streams: read while earlier tasks still
///                               run, so it must be memory that no task writes
///     static TOKENYARD_DEVICE void ahead(Ahead&, const Args&);
///                               loads for the whole block once the iteration has begun, while
///                               earlier tasks still run: nothing that they write
///     static constexpr ArgField kFields[];       for graphs that are not built in C++
#pragma once

#include "device/part.hpp"
#include "device/unroll.hpp"
#include "megakernel/kernels/launch_kernel.hpp"
#include "tokenyard/megakernel/event.hpp"

namespace tokenyard::megakernel {

/// Rows of constant memory that a warp streams one after the other, each in pieces, the units.
/// 16-byte aligned; a piece is at most StreamPlan::unit_bytes.
struct StreamedRows {
  const std::byte* from;
  uint64_t row_stride;
  uint32_t rows, row_bytes, piece_bytes;

  TOKENYARD_DEVICE uint32_t units() const {
    return rows * ((row_bytes + piece_bytes - 1) / piece_bytes);
  }
};

/// The destination for the loads of a task's `ahead`, which the loader calls.
class Ahead {
 public:
  TOKENYARD_DEVICE Ahead(std::byte* to, Completion& full) : to_(to), full_(full) {}
  /// Sets the bytes of all loads together. Called once, before any load.
  TOKENYARD_DEVICE void expect(uint32_t bytes) { full_.arrive_expect(bytes); }
  TOKENYARD_DEVICE void load(uint32_t at, const void* from, uint32_t bytes) {
    if (bytes > 0) bulk::load(to_ + at, from, bytes, full_);
  }

 private:
  std::byte* to_;
  Completion& full_;
};

class Context {
 public:
  TOKENYARD_DEVICE explicit Context(const Working& working)
      : working_(working),
        ring_(unit_slot(working.params, warp::index(), 0)),
        full_(settled(working.shared.unit_full[warp::index()])),
        empty_(settled(working.shared.unit_empty[warp::index()])) {}

  TOKENYARD_DEVICE uint32_t rank() const { return working_.params.rank; }
  TOKENYARD_DEVICE uint32_t ranks() const { return working_.params.ranks; }
  /// Returns the number of the iteration, counted through all runs of the object.
  TOKENYARD_DEVICE uint64_t iteration() const { return iteration_; }
  /// Returns the number of the iteration within this run.
  TOKENYARD_DEVICE uint32_t iteration_of_run() const {
    return static_cast<uint32_t>(iteration_ - working_.params.first);
  }

  TOKENYARD_DEVICE uint32_t thread() const { return thread::index(); }
  TOKENYARD_DEVICE uint32_t threads() const { return working_.compute_threads; }
  TOKENYARD_DEVICE uint32_t warp() const { return warp::index(); }
  TOKENYARD_DEVICE uint32_t warps() const { return working_.params.compute_warps; }
  /// Synchronizes the task's threads, and orders their memory accesses.
  TOKENYARD_DEVICE void sync() const { NamedBarrier(WorkerBarrier::compute).sync(threads()); }
  /// Returns whether the run has failed here; the results of the task are then discarded. Threads
  /// may get different answers, so none may skip a sync() because of it.
  TOKENYARD_DEVICE bool failed() const {
    return load<Order::relaxed, Scope::block>(&working_.shared.failed) != kNeverFailed;
  }
  template <class Shared>
  TOKENYARD_DEVICE Shared& shared() const {
    return *reinterpret_cast<Shared*>(scratch(working_.params));
  }

  /// Returns the number of units that a warp may hold at a time.
  TOKENYARD_DEVICE uint32_t ring_units() const { return working_.params.streams.depth; }
  /// Waits for the warp's next units and returns them in `units`. Called by a whole warp. Returns
  /// false if the run has failed; the units may then still be in flight and must not be read. Lanes
  /// may get different answers.
  template <uint32_t kUnits>
  TOKENYARD_DEVICE bool next_units(const std::byte* (&units)[kUnits]) {
    RingCursor at = units_;
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kUnits; ++i) {
      units[i] = ring_ + at.slot * working_.params.streams.unit_bytes;
      at.next(ring_units());
    }
    at = units_;
    // One wait in the code, however many units: a GPU fetches code from as far as data.
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = 0; i < kUnits && !lost_; ++i) {
      lost_ = !await_unit(at);
      at.next(ring_units());
    }
    return !lost_;
  }
  /// Returns the next unit, or null if the run has failed.
  TOKENYARD_DEVICE const std::byte* next_unit() {
    const std::byte* unit[1];
    return next_units(unit) ? unit[0] : nullptr;
  }
  /// Frees the slots of the oldest units. Called by a whole warp that has read them. Slots of units
  /// that did not arrive are not freed, since their loader would lose count of landed copies.
  template <uint32_t kUnits>
  TOKENYARD_DEVICE void release_units() {
    warp::sync();
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (warp::lane() == 0 && !lost_) empty_[units_.slot].arrive();
      units_.next(ring_units());
    }
  }
  TOKENYARD_DEVICE void release_unit() { release_units<1>(); }

  /// Returns the data that the task's `ahead` has loaded, or null if the run has failed. Every
  /// thread that reads the data calls it, in every run of a task that has `ahead`. Threads may
  /// write to the data; each that does calls fence_async() afterwards.
  TOKENYARD_DEVICE std::byte* loaded_ahead() {
    Completion& full = working_.shared.ahead_full;
    Awaited what{.phase = phase_of(working_.params, RunPhase::units), .rank = rank()};
    if (wait_until(working_.deadline(), what, [&] { return full.done(ahead_ & 1); }))
      return ahead_area(working_.params);
    stall(working_,
          {.what = Stalled::units, .task = task_, .rank = rank(), .iteration = iteration_});
    return nullptr;
  }
  /// Waits until the words that carry an event have arrived. Returns early if the run fails: the
  /// words and everything computed from them are then meaningless.
  template <class Condition>
  TOKENYARD_DEVICE void await_carried(Event event, Condition condition) const {
    Awaited what{.phase = task_, .rank = rank()};
    if (!wait_until(working_.deadline(), what, condition))
      stall(working_, {.what = Stalled::carried,
                       .task = task_,
                       .event = event.id,
                       .rank = rank(),
                       .iteration = iteration_});
  }

  /// Signals a dynamic event `count` times, by one thread. The signal covers everything that this
  /// thread did before, and that the others did before their last sync(). The event may belong to
  /// another rank only in static runs. More signals than dynamic_max, or than expect() has
  /// announced, fail the run.
  TOKENYARD_DEVICE void signal(Event event, uint32_t to_rank, uint32_t count) const {
    if (count == 0) return;
    if (to_rank != rank())  // That rank's expect(), or its host, detects a surplus.
      add<Order::release, Scope::sys>(working_.params.windows.counter(to_rank, event.id), count);
    const uint64_t surplus = to_rank == rank() ? count_in(event, count) : 0;
    const uint32_t most = working_.params.events[event.id].dynamic_max;
    if (count > most) return refuse(Stalled::surplus, event, most, count);
    if (surplus == 0) return;
    // Relaxed: only a report uses it. Without expect(), only the upper bound is known.
    const Promise promise{load<Order::relaxed, Scope::gpu>(
        promise_beside(working_.params.windows.own_counter(event.id)))};
    const bool published = promise.is_of(iteration_);
    const uint64_t expected = published ? promise.signals() : most;
    refuse(Stalled::surplus, event, expected, expected + surplus + (published ? 0 : 1));
  }
  /// Announces, by one thread, that the event of this rank gets exactly n signals in this
  /// iteration. n is at most the event's dynamic_max; more fails the run. The event also covers
  /// everything that this thread did before.
  TOKENYARD_DEVICE void expect(Event event, uint32_t n) const {
    const uint32_t most = working_.params.events[event.id].dynamic_max;
    if (n > most) return refuse(Stalled::event, event, most, n);
    // Relaxed: read only by the thread that finds too many signals, for its report.
    store<Order::relaxed, Scope::gpu>(promise_beside(working_.params.windows.own_counter(event.id)),
                                      Promise::of(iteration_, n).bits);
    const uint64_t surplus = count_in(event, dynamic_triggers(most) - n);
    if (surplus > 0) refuse(Stalled::surplus, event, n, n + surplus);
  }
  /// Makes this iteration the last one on `rank`. Called by one thread before its task signals the
  /// loop's event, or an event that precedes it. A rank on another host ends its loop itself: a
  /// task that names one fails the run. Relaxed: the signal publishes it.
  TOKENYARD_DEVICE void end_loop(uint32_t rank) const {
    if (!working_.params.windows.reaches(rank)) return refuse(Stalled::far_loop, {}, 0, rank);
    store<Order::relaxed, Scope::sys>(working_.params.windows.last(rank), iteration_ + 1);
  }
  TOKENYARD_DEVICE void end_loop() const { end_loop(rank()); }

  /// Begins a task; called by the worker.
  TOKENYARD_DEVICE void begin(uint32_t task, uint64_t iteration) {
    begin_part(task);
    task_ = task;
    iteration_ = iteration;
  }
  /// Frees the area for data loaded ahead; called by the worker after a task that has `ahead`.
  TOKENYARD_DEVICE void release_ahead() {
    if (thread() == 0) working_.shared.ahead_empty.arrive();
    ++ahead_;
  }

 private:
  /// Signals an event of this rank. Returns by how much its signals exceed those of this iteration.
  TOKENYARD_DEVICE uint64_t count_in(Event event, uint32_t count) const {
    const EventRecord& record = working_.params.events[event.id];
    const uint64_t before =
        fetch_add<Order::release, Scope::sys>(working_.params.windows.own_counter(event.id), count);
    // An event that no task awaits may already have signals of the next iteration.
    const uint64_t most = uint64_t{record.triggers} * (iteration_ + 1);
    return record.awaited != 0 && before + count > most ? before + count - most : 0;
  }
  /// Fails the run because there are more signals than declared.
  TOKENYARD_DEVICE void refuse(Stalled what, Event event, uint64_t expected, uint64_t seen) const {
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
  TOKENYARD_DEVICE bool await_unit(const RingCursor& unit) const {
    Completion& full = full_[unit.slot];
    Awaited what{.phase = phase_of(working_.params, RunPhase::units), .rank = rank()};
    if (wait_until(working_.deadline(), what, [&] { return full.done(unit.parity()); }))
      return true;
    stall(working_,
          {.what = Stalled::units, .task = task_, .rank = rank(), .iteration = iteration_});
    return false;
  }

  const Working& working_;
  std::byte* ring_;            ///< this warp's units
  Completion *full_, *empty_;  ///< of these units
  uint32_t task_ = 0;
  uint64_t iteration_ = 0;
  uint32_t ahead_ = 0;  ///< number of tasks that loaded ahead so far
  RingCursor units_;
  /// Whether a unit did not arrive in time. Later ones cannot be judged then: laps share parities.
  bool lost_ = false;
};

}  // namespace tokenyard::megakernel
