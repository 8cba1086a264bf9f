/// A scheduler of a dynamic run: run_params.hpp tells how it works.
#pragma once

#include "megakernel/host_feed_kernel.hpp"
#include "megakernel/launch_kernel.hpp"

namespace tokenyard::megakernel {

/// One thread of a block after the workers.
class Scheduler {
 public:
  DEVICE explicit Scheduler(Working& working)
      : working_(working),
        mine_(block::index() - working.params.workers),
        head_(working.params.dynamic.heads[block::index()]),
        next_worker_(mine_) {}

  DEVICE void run() {
    const bool leads = mine_ == 0;
    bool goes_on = !leads || begin(working_.params.first);
    while (goes_on) {
      uint32_t value = 0;
      if (!take(value)) break;
      if (value == kStop) break;
      goes_on = value == kEnded ? next_iteration() : launch(value);
    }
    if (leads && !goes_on && !failed_) stop_all();
    working_.params.dynamic.heads[block::index()] = head_;
    working_.params.progress[block::index()] = done_;
  }

 private:
  /// The leader's patience is that of the iteration: it awaits its end. The others' has no end.
  DEVICE bool take(uint32_t& value) {
    const RunParams& params = working_.params;
    const Queue queue = params.windows.event_queue(params.rank, mine_);
    Awaited what{.phase = phase_of(params, RunPhase::iteration),
                 .rank = params.rank,
                 .expected = params.tasks};
    const auto came = [&] { return queue.peek<Scope::sys>(head_, value); };
    const bool got = mine_ == 0 ? wait_until(working_.deadline(), what, came)
                                : wait_until(working_.idle_deadline(), what, came);
    if (!got) return give_up();
    queue.free<Scope::sys>(head_);
    ++head_;
    return true;
  }

  /// Leaves what the first task that cannot begin is waiting for.
  DEVICE bool give_up() {
    failed_ = true;
    if (mine_ != 0) return false;
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
        return false;
      }
    }
    return false;
  }

  /// False if there shall be no such iteration.
  DEVICE bool begin(uint64_t iteration) {
    const RunParams& params = working_.params;
    const auto done = static_cast<uint32_t>(iteration - params.first);
    if (params.fed) {
      const Turn turn = ask_host(working_, done);
      if (turn.allowed() <= done) {
        failed_ = !turn.all();
        return false;
      }
    } else if (params.iterations != 0 && done == params.iterations) {
      return false;
    }
    iteration_ = iteration;
    working_.began_ns = now_ns();
    // Relaxed: the queues that the tasks travel through publish it.
    store<Order::relaxed, Scope::gpu>(&params.workspace->iteration, iteration);
    for (uint32_t i = 1; i < params.dynamic.schedulers; ++i)
      push_event(working_, params.rank, i, kBegin);
    if (!launch(kBegin)) return false;
    // With no task to be the last, the iteration has ended.
    if (params.tasks == 0) push_event(working_, params.rank, 0, kEnded);
    return true;
  }

  DEVICE bool next_iteration() {
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
        failed_ = true;
        return false;
      }
    }
    ++done_;
    // Relaxed: the loop's event comes after it.
    if (params.loop_event != kNoEvent &&
        load<Order::relaxed, Scope::sys>(params.windows.last(params.rank)) == iteration_ + 1) {
      return false;
    }
    return begin(iteration_ + 1);
  }

  /// This scheduler's share of the tasks that wait for an event.
  DEVICE bool launch(uint32_t event) {
    const DynamicParams& dynamic = working_.params.dynamic;
    const bool begins = event == kBegin;
    const EventRecord* const events = working_.params.events;
    const uint32_t from = begins ? dynamic.begin_at : events[event].tasks_at;
    const uint32_t to = begins ? dynamic.begin_end : events[event + 1].tasks_at;
    const bool shared = begins || events[event].launch == Launch::every;
    const uint32_t step = shared ? dynamic.schedulers : 1;
    for (uint32_t i = from + (shared ? mine_ : 0); i < to; i += step)
      if (!arrive(dynamic.dependents[i])) return false;
    return true;
  }

  /// One more of the task's events has come; it runs with the last. Acquire and release: the last
  /// passes on what the schedulers of the others knew.
  DEVICE bool arrive(const Dependent& task) {
    const DynamicParams& dynamic = working_.params.dynamic;
    if (task.waits > 1) {
      const uint64_t now =
          fetch_add<Order::acq_rel, Scope::gpu>(&dynamic.arrived[task.position], 1) + 1;
      if (now % task.waits != 0) return true;
    }
    return give(task.worker != kAnyWorker ? task.worker : pick_worker(), task.position);
  }

  DEVICE uint32_t pick_worker() {
    const uint32_t worker = next_worker_ % working_.params.workers;
    next_worker_ += working_.params.dynamic.schedulers;
    // With as many schedulers as workers each would serve one only; move on now and then.
    if (working_.params.workers % working_.params.dynamic.schedulers == 0 && ++given_ % 8 == 0)
      ++next_worker_;
    return worker;
  }

  DEVICE bool give(uint32_t worker, uint32_t value) {
    const RunParams& params = working_.params;
    Awaited what{.phase = phase_of(params, RunPhase::queue), .rank = params.rank};
    // Full queues are what holds schedulers back; the leader's deadline ends the run if they stay.
    const Queue queue = params.dynamic.task_queue(worker);
    const bool given = mine_ == 0 ? queue.push<Scope::gpu>(working_.deadline(), what, value)
                                  : queue.push<Scope::gpu>(working_.idle_deadline(), what, value);
    if (!given) failed_ = true;
    return given;
  }

  DEVICE void stop_all() {
    for (uint32_t i = 1; i < working_.params.dynamic.schedulers; ++i)
      push_event(working_, working_.params.rank, i, kStop);
    for (uint32_t worker = 0; worker < working_.params.workers; ++worker)
      if (!give(worker, kStop)) return;
  }

  Working& working_;
  uint32_t mine_;
  uint64_t head_;
  uint32_t next_worker_, given_ = 0;
  uint64_t iteration_ = 0, done_ = 0;
  bool failed_ = false;
};

}  // namespace tokenyard::megakernel
