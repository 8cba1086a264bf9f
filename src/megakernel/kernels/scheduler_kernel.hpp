/// A scheduler of a dynamic run; run_params.hpp describes the protocol.
#pragma once

#include "device/guarded_wait.hpp"
#include "megakernel/kernels/host_feed_kernel.hpp"
#include "megakernel/kernels/publish_kernel.hpp"
#include "megakernel/kernels/ready_kernel.hpp"

namespace tokenyard::megakernel {

/// Runs in one warp of a block after the workers. Control flow is uniform: each lane looks at one
/// event, and all lanes launch the tasks of each completed one.
class Scheduler {
 public:
  TOKENYARD_DEVICE explicit Scheduler(Working& working)
      : working_(working),
        params_(working.params),
        dynamic_(working.params.dynamic),
        shared_(*reinterpret_cast<SchedulerShared*>(scratch(working.params))),
        mine_(block::index() - working.params.workers),
        leads_(mine_ == 0),
        publisher_(working, shared_, mine_),
        turn_(leads_ ? &params_.workspace->tasks_ended : &params_.workspace->begun),
        stop_(kRunStopped | params_.run),
        turn_need_(working.params.first + 1),
        iteration_(working.params.first),
        aim_(turn_) {}

  TOKENYARD_DEVICE void run() {
    if (warp::index() > 0) return;
    publisher_.recall();
    warp::sync();
    // Begins nothing before all ranks are ready.
    const bool all_here = warp::once([&] { return await_all_ready(working_) ? 1u : 0u; }) != 0;
    bool turns = leads_;
    while (all_here && (!turns || take_turn()) && await_events()) turns = launch_seen();
    leave();
  }

 private:
  static constexpr uint32_t kRow = kWarpLanes - 1;  ///< events polled together
  static constexpr uint32_t kHeldRows = 5;          ///< held tasks per lane

  // ---- watching events

  /// Returns an entry of its list of events; those that do not fit shared memory are in global
  /// memory.
  TOKENYARD_DEVICE OpenWatch& open_at(uint32_t i) const {
    constexpr uint32_t kOpen = SchedulerShared::kOpen;
    return i < kOpen ? shared_.open[i] : dynamic_.open[mine_ * dynamic_.open_max + i - kOpen];
  }

  /// Waits until some of the polled events are complete, or its turn has come; both are in seen_.
  TOKENYARD_DEVICE bool await_events() {
    Awaited what{.phase = phase_of(params_, RunPhase::iteration),
                 .rank = params_.rank,
                 .expected = params_.tasks};
    // The leader waits by the iteration's deadline, since it awaits its end. The others have none.
    const DeadlineApart deadline = leads_ ? working_.deadline() : working_.idle_deadline();
    if (!moved_on_) aim(row_ < open_ ? row_ : 0);
    uint32_t polls = 0;
    // Lanes poll together, several times in a row.
    constexpr uint32_t kLooks = 4;
    const bool came = wait_until(
        what,
        [&] {
          TOKENYARD_UNROLL
          for (uint32_t i = 0; i < kLooks; ++i)
            if (look()) return true;
          if (open_ > kRow) aim(row_ + kRow < open_ ? row_ + kRow : 0);
          return false;
        },
        [&] { return !warp::any(deadline.give_up(++polls, what)); });
    if (came) publish_held();
    if (!came && leads_ && warp::elect()) name_cause();
    return came;
  }

  /// Polls one row of the list, one event per lane. Lane 31 polls the progress of the iteration.
  TOKENYARD_DEVICE bool look() {
    bool came = false;
    if (aims_) {
      // Relaxed: workers that run the event's tasks acquire it, and schedulers acquire the begin or
      // end of an iteration in acquire_turn.
      aim_seen_ = load<Order::relaxed, Scope::sys>(aim_);
      // (The stop word of an earlier run does not count.)
      came = aim_seen_ >= aim_need_ && (aim_seen_ < kRunStopped || aim_seen_ == stop_);
    }
    seen_ = warp::ballot(came);
    return seen_ != 0;
  }
  /// Computes the address that each lane polls in advance, to keep the polling loop short.
  TOKENYARD_DEVICE void aim(uint32_t row) {
    row_ = row;
    const uint32_t lane = warp::lane(), i = row + lane;
    const bool turns = lane == kRow;
    aims_ = turns || i < open_;
    if (turns) {
      aim_ = turn_;
      aim_need_ = turn_need_;
    } else if (aims_) {
      const OpenWatch& open = open_at(i);
      aim_ = word_of(open.watch);
      aim_need_ = open.need;
    }
    held_ = 0;
    if (row >= open_) return;
    held_watch_ = open_at(row).watch;
    ask_for_places(held_watch_.tasks_at, held_watch_.tasks, held_places_);
    hold();
  }
  TOKENYARD_DEVICE Peer<uint64_t> word_of(const Watch& watch) const {
    const Peer<uint64_t> counter = params_.windows.own_counter(watch.event);
    return watch.announced != 0 ? announced_beside(counter) : counter;
  }
  TOKENYARD_DEVICE uint64_t need_of(const Watch& watch) const {
    return uint64_t{watch.triggers} * (iteration_ + 1);
  }

  /// Holds the tasks of the row's first event, often the only one, and the slots that they will go
  /// to, so that only stores remain once it completes. Also requests the data of the next event, so
  /// that it is here by then.
  TOKENYARD_DEVICE void hold() {
    const uint32_t tasks = held_watch_.tasks;
    held_ = 0;
    if (held_watch_.counts != 0 || tasks > kHeldRows * kWarpLanes || !publisher_.knows_slots(tasks))
      return;
    held_ = tasks;
    held_ticket_ = publisher_.next_ticket() + warp::lane();
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kHeldRows; ++i)
      held_slots_[i] = dynamic_.slot_of(held_ticket_ + i * kWarpLanes);
    if (held_watch_.opens != 1) return;
    next_ = dynamic_.watches[held_watch_.opens_at];
    ask_for_places(held_watch_.opened_tasks_at, held_watch_.opened_tasks, next_places_);
  }
  TOKENYARD_DEVICE void ask_for_places(uint32_t at, uint32_t tasks,
                                       uint32_t (&places)[kHeldRows]) const {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kHeldRows; ++i) {
      const uint32_t task = i * kWarpLanes + warp::lane();
      places[i] = task < tasks ? dynamic_.places[at + task] : 0;
    }
  }
  TOKENYARD_DEVICE void publish_held() {
    if ((seen_ & 1) == 0) held_ = 0;
    if (held_ == 0) return;
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kHeldRows; ++i)
      if (i * kWarpLanes + warp::lane() < held_)
        // Relaxed: the store only assigns the task.
        store<Order::relaxed, Scope::gpu>(
            held_slots_[i], Stamped{stamp_of(held_ticket_ + i * kWarpLanes), held_places_[i]});
    publisher_.take_tickets(held_);
  }
  TOKENYARD_DEVICE static uint32_t last_bit(uint32_t bits) {
    for (uint32_t by = 1; by < 32; by *= 2) bits |= bits >> by;
    return population(bits) - 1;
  }

  // ---- reacting to completed events

  /// Launches the tasks of all completed events. Returns whether the turn of the iteration has
  /// come, too.
  TOKENYARD_DEVICE bool launch_seen() {
    moved_on_ = move_on();
    if (moved_on_) return false;
    constexpr uint32_t kEvents = (1u << kRow) - 1;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t left = seen_ & (held_ != 0 ? kEvents - 1 : kEvents); left != 0; left &= left - 1)
      launch(open_at(row_ + first_bit(left)).watch);
    // From the last on, so that the entry that replaces a closed one is never one of these.
    for (uint32_t left = seen_ & kEvents; left != 0;) {
      const uint32_t last = last_bit(left);
      left ^= 1u << last;
      close(row_ + last);
    }
    return (seen_ >> kRow & 1) != 0;
  }

  /// Handles the case of a single open event that opens exactly one other, whose data hold() has
  /// requested.
  TOKENYARD_DEVICE bool move_on() {
    if (held_ == 0 || seen_ != 1 || open_ != 1 || held_watch_.opens != 1) return false;
    held_watch_ = next_;
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kHeldRows; ++i) held_places_[i] = next_places_[i];
    const uint64_t need = need_of(next_);
    warp::sync();  // All lanes have read the list.
    if (warp::lane() == 0) {
      aim_ = word_of(next_);
      aim_need_ = need;
      open_at(0) = {.watch = next_, .need = need, .unused = 0};
    }
    warp::sync();
    hold();
    return true;
  }

  /// Stops watching this event, and begins to watch those that it opens.
  TOKENYARD_DEVICE void close(uint32_t i) {
    const OpenWatch closed = open_at(i);
    const OpenWatch last = open_at(open_ - 1);
    warp::sync();
    --open_;
    if (warp::elect()) open_at(i) = last;
    open_all(closed.watch);
  }

  TOKENYARD_DEVICE void open_all(const Watch& by) {
    const uint32_t first = open_;
    for (uint32_t i = warp::lane(); i < by.opens; i += kWarpLanes) {
      const Watch watch = dynamic_.watches[by.opens_at + i];
      open_at(first + i) = {.watch = watch, .need = need_of(watch), .unused = 0};
    }
    open_ += by.opens;
    warp::sync();
  }

  // ---- launches

  TOKENYARD_DEVICE void launch(const Watch& watch) {
    if (watch.counts != 0) return launch_counted(watch);
    publisher_.publish(watch.tasks, dynamic_.places + watch.tasks_at);
  }

  /// Launches tasks that may wait for several events or may be pinned to a worker.
  TOKENYARD_DEVICE void launch_counted(const Watch& watch) {
    for (uint32_t first = 0; first < watch.tasks; first += kWarpLanes) {
      const uint32_t task = first + warp::lane();
      Dependent dependent{};
      const bool ready =
          task < watch.tasks && arrive(dependent = dynamic_.dependents[watch.tasks_at + task]);
      const bool any_worker = dependent.worker == kAnyWorker;
      const uint32_t queued = warp::ballot(ready && any_worker);
      const uint64_t ticket = publisher_.take_tickets(population(queued));
      if (ready && any_worker)
        publisher_.publish_one(ticket + population(queued & lanes_below()), dependent.place.bits,
                               publisher_.has_room(ticket + population(queued)));
      if (ready && !any_worker) publisher_.give(dependent.worker, dependent.place.bits);
      warp::sync();
    }
  }

  /// Counts one more completed event of the task and returns whether it was the last. Relaxed: it
  /// only decides which scheduler assigns the task; the worker looks at all of its events.
  TOKENYARD_DEVICE bool arrive(const Dependent& task) const {
    if (task.waits <= 1) return true;
    const uint64_t now =
        fetch_add<Order::relaxed, Scope::gpu>(&dynamic_.arrived[task.position], 1) + 1;
    return now % task.waits == 0;
  }

  // ---- iterations

  /// Orders everything that led to this turn before the next steps of all lanes: slots of the
  /// previous iteration may be overwritten.
  TOKENYARD_DEVICE void acquire_turn() const {
    fence<Scope::gpu>();
    warp::sync();
  }

  enum class Next : uint32_t { begin, stop, leave };
  /// Handles the end or begin of an iteration. Returns false if no iteration follows.
  TOKENYARD_DEVICE bool take_turn() {
    acquire_turn();
    if (!(leads_ ? begin_next() : follow_leader())) return false;
    working_.began_ns = now_ns();
    const Watch begin = dynamic_.watches[mine_];
    launch(begin);
    open_all(begin);
    return true;
  }

  /// Begins the next iteration, by the leader. Returns whether there is one.
  TOKENYARD_DEVICE bool begin_next() {
    if (begun_) {
      if (params_.loop_event != kNoEvent && warp::once([&] { return await_loop() ? 1u : 0u; }) == 0)
        return false;
      ++iteration_;
    }
    begun_ = true;
    const Next next = warp::once([&] { return decide(); });
    if (next == Next::stop) stop_all();
    if (next != Next::begin) return false;
    turn_need_ = dynamic_.counted * (iteration_ + 1);
    // Release: workers and schedulers that acquire it begin the iteration.
    if (warp::elect()) store<Order::release, Scope::gpu>(&params_.workspace->begun, iteration_ + 1);
    warp::sync();
    return true;
  }

  TOKENYARD_DEVICE Next decide() {
    const auto done = static_cast<uint32_t>(iteration_ - params_.first);
    if (ends_loop_) return Next::stop;
    if (cancelled(working_, iteration_, true)) return Next::leave;
    if (params_.fed) {
      const Turn turn = ask_host(working_, done);
      if (turn.allowed() > done) return Next::begin;
      return turn.all() ? Next::stop : Next::leave;
    }
    return params_.iterations != 0 && done == params_.iterations ? Next::stop : Next::begin;
  }

  /// Waits for the loop event, by one lane.
  TOKENYARD_DEVICE bool await_loop() {
    const EventRecord event = params_.events[params_.loop_event];
    Awaited what{.phase = phase_of(params_, RunPhase::loop),
                 .rank = params_.rank,
                 .expected = event.triggers * (iteration_ + 1)};
    if (!await_counter(working_.deadline(), what,
                       params_.windows.counter(params_.rank, params_.loop_event), true)) {
      params_.stalls[block::index()] = {.what = Stalled::loop,
                                        .event = params_.loop_event,
                                        .rank = params_.rank,
                                        .iteration = iteration_,
                                        .need = what.expected,
                                        .have = what.seen};
      return false;
    }
    // Relaxed: the loop's event, which is acquired, follows it.
    ends_loop_ =
        load<Order::relaxed, Scope::sys>(params_.windows.last(params_.rank)) == iteration_ + 1;
    return true;
  }

  /// Reads the leader's decision, by any other scheduler. Returns whether an iteration begins.
  TOKENYARD_DEVICE bool follow_leader() {
    const uint64_t said = warp::shuffle(aim_seen_, kRow);
    if (said >= kRunStopped) return false;
    iteration_ = said - 1;
    turn_need_ = said + 1;
    return true;
  }

  /// Ends the run normally: tells all workers and all other schedulers of the rank.
  TOKENYARD_DEVICE void stop_all() {
    const uint32_t workers = params_.workers;
    const uint64_t ticket = publisher_.take_tickets(workers);
    for (uint32_t i = warp::lane(); i < workers; i += kWarpLanes)
      publisher_.publish_one(ticket + i, kStop, false);
    if (warp::elect())
      store<Order::relaxed, Scope::gpu>(&params_.workspace->begun, kRunStopped | params_.run);
  }

  TOKENYARD_DEVICE void leave() {
    warp::sync();
    publisher_.keep();
    if (warp::elect()) params_.progress[block::index()] = iteration_ - params_.first;
  }

  /// Records what the first task that cannot begin is waiting for, by one lane.
  TOKENYARD_DEVICE void name_cause() {
    for (uint32_t position = 0; position < params_.tasks; ++position) {
      const Packet& packet = *reinterpret_cast<const Packet*>(
          params_.packets + params_.positions[position] * kPacketAlignment);
      for (uint32_t i = 0; i < packet.waits; ++i) {
        const WaitRecord& wait = packet.wait_records()[i];
        const uint64_t need = uint64_t{wait.triggers} * (iteration_ + 1 - wait.lag);
        // Relaxed: only a report uses it.
        const uint64_t have =
            load<Order::relaxed, Scope::sys>(params_.windows.counter(params_.rank, wait.event));
        if (have >= need) continue;
        params_.stalls[block::index()] = {.what = Stalled::event,
                                          .task = packet.task,
                                          .event = wait.event,
                                          .rank = wait.rank,
                                          .iteration = iteration_,
                                          .need = need,
                                          .have = have};
        return;
      }
    }
  }

  Working& working_;
  const RunParams& params_;
  const DynamicParams& dynamic_;
  SchedulerShared& shared_;
  const uint32_t mine_;
  const bool leads_;
  // Uniform over the lanes:
  Publisher publisher_;
  const Peer<uint64_t> turn_;  ///< shows the iteration's end to the leader, its begin to others
  const uint64_t stop_;        ///< the value that it has when the run ends
  uint64_t turn_need_;
  uint64_t iteration_;  ///< running or next
  uint32_t open_ = 0;   ///< events in its list
  uint32_t row_ = 0, seen_ = 0;
  bool begun_ = false;  ///< whether the leader has begun any iteration
  // Per lane:
  Watch held_watch_{}, next_{};  ///< the row's first watch; the one that it opens
  bool moved_on_ = false;        ///< whether move_on has set up the next poll already
  uint32_t held_ = 0;            ///< number of held tasks of the row's first watch, or 0
  uint64_t held_ticket_ = 0;
  Stamped* held_slots_[kHeldRows] = {};
  uint32_t held_places_[kHeldRows] = {}, next_places_[kHeldRows] = {};
  bool aims_ = false;  ///< whether the lane polls anything
  Peer<uint64_t> aim_;
  uint64_t aim_need_ = 0, aim_seen_ = 0;
  bool ends_loop_ = false;
};

}  // namespace tokenyard::megakernel
