/// Invented traces: tasks at known times, recorded by clocks with known offsets.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

class InventedTraces {
 public:
  struct Ran {
    uint32_t rank, task;
  };

  /// `ahead`: [ranks] ns by which each rank's clock is ahead.
  explicit InventedTraces(std::vector<int64_t> ahead) : ahead_(std::move(ahead)) {
    for (uint32_t rank = 0; rank < ahead_.size(); ++rank)
      traces.push_back({.rank = rank, .workers = 1, .tasks = {}, .events = {}, .spans = {}});
  }

  /// Adds a task that ran at these times.
  Ran ran(uint32_t rank, uint64_t begun_ns, uint64_t ended_ns) {
    const auto task = static_cast<uint32_t>(traces[rank].tasks.size());
    traces[rank].tasks.push_back(
        {.name = fmt::format("task {} of {}", task, rank), .type = "step", .waits = {}});
    again({rank, task}, 0, begun_ns, ended_ns);
    return {rank, task};
  }
  /// Adds a run of the same task in another iteration.
  void again(Ran task, uint64_t iteration, uint64_t begun_ns, uint64_t ended_ns) {
    traces[task.rank].spans.push_back({.worker = 0,
                                       .task = task.task,
                                       .iteration = iteration,
                                       .taken_ns = notes(task.rank, begun_ns),
                                       .begun_ns = notes(task.rank, begun_ns),
                                       .ended_ns = notes(task.rank, ended_ns)});
  }
  /// Adds an event from one task to the other, whatever their times.
  void signal(Ran from, Ran to, uint32_t lag = 0) {
    Trace& trace = traces[to.rank];
    trace.tasks[to.task].waits.push_back(
        {.event = static_cast<uint32_t>(trace.events.size()), .lag = lag});
    trace.events.push_back({.carried = false, .signals = {{.rank = from.rank, .task = from.task}}});
  }
  /// Adds a task of rank `from` at `begun_ns`, and a task of rank `to` that awaits it, `later_ns`
  /// later.
  void tell(uint32_t from, uint32_t to, uint64_t begun_ns, uint64_t later_ns) {
    const Ran signals = ran(from, begun_ns, begun_ns + later_ns / 2);
    signal(signals, ran(to, begun_ns + later_ns, begun_ns + 2 * later_ns));
  }

  std::vector<Trace> traces;

 private:
  uint64_t notes(uint32_t rank, uint64_t ns) const {
    constexpr uint64_t kStart = uint64_t{1} << 61;  // Larger than the offset of any clock.
    return kStart + ns + static_cast<uint64_t>(ahead_[rank]);
  }

  std::vector<int64_t> ahead_;
};

}  // namespace tokenyard::megakernel
