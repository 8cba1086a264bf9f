/// A scheduler of a dynamic run: run_params.hpp tells how it works.
#pragma once

#include "megakernel/hello_kernel.hpp"
#include "megakernel/host_feed_kernel.hpp"
#include "megakernel/launch_kernel.hpp"

namespace tokenyard::megakernel {

/// By all threads of a block after the workers. The first decides what comes next, then all do it;
/// a thread that fails to give a task has failed the run, and goes on to the next meeting.
class Scheduler {
 public:
  DEVICE explicit Scheduler(Working& working)
      : working_(working),
        shared_(*reinterpret_cast<SchedulerShared*>(&working.shared.packets)),
        mine_(block::index() - working.params.workers),
        head_(kept_head()),
        next_worker_(mine_ * working.params.workers / working.params.dynamic.schedulers) {}

  DEVICE void run() {
    const uint32_t workers = working_.params.workers;
    uint64_t* const sent = working_.params.dynamic.sent + size_t{mine_} * workers;
    for (uint32_t worker = thread::index(); worker < workers; worker += block::threads()) {
      shared_.sent[worker] = sent[worker];
      shared_.taken[worker] = 0;
    }
    for (uint32_t turn = 0;; turn ^= 1) {
      if (thread::index() == 0) shared_.orders[turn] = decide();
      block::sync();
      const Orders orders = shared_.orders[turn];
      if (orders.kind == Orders::Kind::leave) break;
      working_.began_ns = orders.began_ns;
      if (orders.kind == Orders::Kind::launch)
        launch(orders);
      else
        for (uint32_t worker = thread::index(); worker < workers; worker += block::threads())
          give(worker, kStop);
    }
    for (uint32_t worker = thread::index(); worker < workers; worker += block::threads())
      sent[worker] = shared_.sent[worker];
    if (thread::index() != 0) return;
    free_taken();
    kept_head() = head_;
    working_.params.progress[block::index()] = done_;
  }

 private:
  DEVICE bool leads() const { return mine_ == 0; }
  DEVICE uint64_t& kept_head() const {
    const DynamicParams& dynamic = working_.params.dynamic;
    return dynamic.heads[working_.params.workers * dynamic.schedulers + mine_];
  }

  /// By the first thread.
  DEVICE Orders decide() {
    if (!heard_) {
      heard_ = true;
      // It begins nothing before this rank's workers, and all others, are there to take it.
      if (!hear_all(working_)) return leave();
      if (leads()) return begin(working_.params.first);
    }
    if (stopped_) return leave();
    uint32_t value = 0;
    if (!take(value) || value == kStop) return leave();
    return value == kEnded ? next_iteration() : tasks_of(value);
  }

  DEVICE Orders leave() const { return order(Orders::Kind::leave); }
  DEVICE Orders order(Orders::Kind kind) const {
    return {
        .kind = kind, .from = 0, .to = 0, .step = 1, .worker = 0, .began_ns = working_.began_ns};
  }
  /// The run ends as it should: all other blocks of the rank hear so.
  DEVICE Orders stop_all() {
    stopped_ = true;
    fence_for_events(working_.params);
    for (uint32_t i = 1; i < working_.params.dynamic.schedulers; ++i)
      push_event(working_, working_.params.rank, i, kStop);
    return order(Orders::Kind::stop_workers);
  }

  /// The leader's patience is that of the iteration: it awaits its end. The others' has no end.
  DEVICE bool take(uint32_t& value) {
    const RunParams& params = working_.params;
    const Queue queue = params.windows.event_queue(params.rank, mine_);
    Awaited what{.phase = phase_of(params, RunPhase::iteration),
                 .rank = params.rank,
                 .expected = params.tasks};
    const bool shared = params.ranks > 1;
    free_taken();
    // Late, as above: a GPU has no instruction that divides.
    next_worker_ = (next_worker_ + given_) % params.workers;
    given_ = 0;
    const auto came = [&] {
      return shared ? queue.peek<Scope::sys>(head_, value) : queue.peek<Scope::gpu>(head_, value);
    };
    if (!wait_until(leads() ? working_.deadline() : working_.idle_deadline(), what, came)) {
      name_cause();
      return false;
    }
    ++head_;
    taken_ = true;
    return true;
  }

  /// The slot of the event before may be filled again. Said late, because it is a fence that
  /// whoever waits for the tasks need not wait for.
  DEVICE void free_taken() {
    if (!taken_) return;
    taken_ = false;
    const RunParams& params = working_.params;
    const Queue queue = params.windows.event_queue(params.rank, mine_);
    if (params.ranks > 1)
      queue.free<Scope::sys>(head_ - 1);
    else
      queue.free<Scope::gpu>(head_ - 1);
  }

  /// Leaves what the first task that cannot begin is waiting for.
  DEVICE void name_cause() {
    if (!leads()) return;
    const RunParams& params = working_.params;
    for (uint32_t position = 0; position < params.tasks; ++position) {
      const Packet& packet = *reinterpret_cast<const Packet*>(
          params.packets + params.positions[position] * kPacketAlignment);
      for (uint32_t i = 0; i < packet.waits; ++i) {
        const WaitRecord& wait = packet.wait_records()[i];
        const uint64_t need = uint64_t{wait.triggers} * (iteration_ + 1 - wait.lag);
        // Relaxed: for people.
        const uint64_t have =
            load<Order::relaxed, Scope::sys>(params.windows.counter(params.rank, wait.event));
        if (have >= need) continue;
        params.stalls[block::index()] = {.what = Stalled::event,
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

  /// Stops if there shall be no such iteration.
  DEVICE Orders begin(uint64_t iteration) {
    const RunParams& params = working_.params;
    const auto done = static_cast<uint32_t>(iteration - params.first);
    if (cancelled(working_, iteration, true)) return leave();
    if (params.fed) {
      const Turn turn = ask_host(working_, done);
      if (turn.allowed() <= done) return turn.all() ? stop_all() : leave();
    } else if (params.iterations != 0 && done == params.iterations) {
      return stop_all();
    }
    iteration_ = iteration;
    working_.began_ns = now_ns();
    // Relaxed: the queues that the tasks travel through publish it.
    store<Order::relaxed, Scope::gpu>(&params.workspace->iteration, iteration);
    fence_for_events(params);
    for (uint32_t i = 1; i < params.dynamic.schedulers; ++i)
      push_event(working_, params.rank, i, kBegin);
    // With no task to be the last, the iteration has ended.
    if (params.tasks == 0) push_event(working_, params.rank, 0, kEnded);
    return tasks_of(kBegin);
  }

  DEVICE Orders next_iteration() {
    const RunParams& params = working_.params;
    if (params.loop_event != kNoEvent) {
      const EventRecord event = params.events[params.loop_event];
      Awaited what{.phase = phase_of(params, RunPhase::loop),
                   .rank = params.rank,
                   .expected = event.triggers * (iteration_ + 1)};
      if (!await_counter(working_.deadline(), what,
                         params.windows.counter(params.rank, params.loop_event), true)) {
        params.stalls[block::index()] = {.what = Stalled::loop,
                                         .event = params.loop_event,
                                         .rank = params.rank,
                                         .iteration = iteration_,
                                         .need = what.expected,
                                         .have = what.seen};
        return leave();
      }
    }
    ++done_;
    // Relaxed: the loop's event comes after it.
    if (params.loop_event != kNoEvent &&
        load<Order::relaxed, Scope::sys>(params.windows.last(params.rank)) == iteration_ + 1)
      return stop_all();
    return begin(iteration_ + 1);
  }

  /// This scheduler's share of the tasks that wait for an event.
  DEVICE Orders tasks_of(uint32_t event) {
    const DynamicParams& dynamic = working_.params.dynamic;
    const EventRecord* const events = working_.params.events;
    const bool begins = event == kBegin;
    const bool shared = begins || events[event].launch == Launch::every;
    Orders orders = order(Orders::Kind::launch);
    orders.from = (begins ? dynamic.begin_at : events[event].tasks_at) + (shared ? mine_ : 0);
    orders.to = begins ? dynamic.begin_end : events[event + 1].tasks_at;
    orders.step = shared ? dynamic.schedulers : 1;
    orders.worker = next_worker_;
    if (orders.to > orders.from) given_ = (orders.to - orders.from + orders.step - 1) / orders.step;
    return orders;
  }

  /// By all threads.
  DEVICE void launch(const Orders& orders) {
    const uint32_t workers = working_.params.workers;
    uint32_t worker = orders.worker + thread::index();
    for (uint32_t i = orders.from + thread::index() * orders.step; i < orders.to;
         i += block::threads() * orders.step, worker += block::threads()) {
      while (worker >= workers) worker -= workers;
      arrive(working_.params.dynamic.dependents[i], worker);
    }
  }

  /// One more of the task's events has come; it runs with the last. Acquire and release: the last
  /// passes on what the schedulers of the others knew.
  DEVICE void arrive(const Dependent& task, uint32_t worker) {
    const DynamicParams& dynamic = working_.params.dynamic;
    if (task.waits > 1) {
      const uint64_t now =
          fetch_add<Order::acq_rel, Scope::gpu>(&dynamic.arrived[task.position], 1) + 1;
      if (now % task.waits != 0) return;
    }
    give(task.worker != kAnyWorker ? task.worker : worker, task.place.bits);
  }

  DEVICE void give(uint32_t worker, uint32_t value) {
    const RunParams& params = working_.params;
    Awaited what{.phase = phase_of(params, RunPhase::queue), .rank = params.rank};
    // Relaxed: the ticket only says which slot. Acquire and release: a thread that writes over a
    // slot because another one has heard that it was taken must know what that one heard.
    const uint64_t ticket = fetch_add<Order::relaxed, Scope::block>(&shared_.sent[worker], 1);
    uint64_t taken = load<Order::acquire, Scope::block>(&shared_.taken[worker]);
    const uint64_t known = taken;
    // Full queues are what holds schedulers back; the leader's deadline ends the run if they stay.
    params.dynamic.task_queue(worker, mine_)
        .put<Scope::gpu>(leads() ? working_.deadline() : working_.idle_deadline(), what, ticket,
                         taken, value);
    if (taken != known) store<Order::release, Scope::block>(&shared_.taken[worker], taken);
  }

  Working& working_;
  SchedulerShared& shared_;
  uint32_t mine_;
  // Of the first thread.
  uint64_t head_;
  uint32_t next_worker_;  ///< that gets the next task which may go to any,
  uint32_t given_ = 0;    ///< once these are counted, which are under way
  uint64_t iteration_ = 0, done_ = 0;
  bool heard_ = false, stopped_ = false;
  bool taken_ = false;  ///< the event before `head_`, whose slot has not been freed
};

}  // namespace tokenyard::megakernel
