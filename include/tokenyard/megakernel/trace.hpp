/// Times at which each task of a run waited, ran and ended, on one rank or on all ranks together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tokenyard::megakernel {

struct TraceSpan {
  uint32_t worker, task;
  uint64_t iteration;
  uint64_t taken_ns, begun_ns, ended_ns;  ///< worker free, events complete, done; on rank's clock
};

/// A task of any rank that signals an event.
struct TraceSignal {
  uint32_t rank, task;
  bool dynamic = false;  ///< its body decides how often it signals, perhaps never
};

/// An event of this rank and the tasks that signal it.
struct TraceEvent {
  bool carried = false;  ///< task bodies await it, so tasks may begin before it is complete
  std::vector<TraceSignal> signals;  ///< by rank; empty if no task awaits the event
};

struct TraceWait {
  uint32_t event;  ///< index in Trace::events
  uint32_t lag;    ///< 1: the event of the previous iteration
};

/// A task and the events that it awaits, for flow arrows and critical paths.
struct TraceTask {
  std::string name, type;
  std::vector<TraceWait> waits;
};

struct TraceSummary {
  uint64_t busy_ns = 0, waiting_ns = 0;  ///< sums over all workers
  uint64_t length_ns = 0;                ///< from the first task taken to the last task's end
  std::vector<uint32_t> critical_path;   ///< indices of spans, in order of time
  std::string text(const std::vector<TraceSpan>& spans, const std::vector<TraceTask>& tasks) const;
};

struct Trace {
  uint32_t rank = 0, workers = 0;
  std::vector<TraceTask> tasks;    ///< [tasks of the graph]
  std::vector<TraceEvent> events;  ///< [events of the graph]
  std::vector<TraceSpan> spans;    ///< by worker, then time

  /// Returns totals and the critical path of this rank. The path leads back from the task that
  /// ended last; each step goes to the latest to end among the previous task on its worker and the
  /// tasks whose events it awaited.
  TraceSummary summary() const;
  /// Returns each task's mean run time in ns, [tasks], for Graph::set_cost; 0 if it never ran.
  std::vector<uint64_t> measured_costs() const;
  /// Returns a file for ui.perfetto.dev, with a row per worker and an arrow to each wait from its
  /// last signal.
  std::string perfetto() const;
};

/// Returns one file for ui.perfetto.dev with a process per rank and arrows between ranks as well:
/// to each wait from the last signal of each rank. All times are on the clock of the lowest rank
/// that ran a task; each other rank's process names the offset that was added to its clock, and the
/// uncertainty of that offset. Throws InvalidArgument if two traces belong to one rank.
std::string perfetto(std::span<const Trace> traces);

}  // namespace tokenyard::megakernel
