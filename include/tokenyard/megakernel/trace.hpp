/// The times at which each task of a run waited, ran and ended, on one rank or on all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tokenyard::megakernel {

struct TraceSpan {
  uint32_t worker, task;
  uint64_t iteration;
  uint64_t taken_ns, begun_ns, ended_ns;  ///< worker free; events there; done. Of this rank's clock
};

/// A task that signals an event, of any rank.
struct TraceSignal {
  uint32_t rank, task;
  bool dynamic = false;  ///< its body signals as often as it finds, perhaps never
};

/// An event of this rank, and the tasks that signal it.
struct TraceEvent {
  bool carried = false;              ///< bodies await it, so tasks may begin before it is complete
  std::vector<TraceSignal> signals;  ///< by rank; none of an event that no task awaits
};

struct TraceWait {
  uint32_t event;  ///< of TraceEvents
  uint32_t lag;    ///< 1: the event of the previous iteration
};

/// One task and the events that it awaits: for flows and critical paths.
struct TraceTask {
  std::string name, type;
  std::vector<TraceWait> waits;
};

struct TraceSummary {
  uint64_t busy_ns = 0, waiting_ns = 0;  ///< of all workers together
  uint64_t length_ns = 0;                ///< from the first task taken to the last one ended
  std::vector<uint32_t> critical_path;   ///< indices of spans, in the order of time
  std::string text(const std::vector<TraceSpan>& spans, const std::vector<TraceTask>& tasks) const;
};

struct Trace {
  uint32_t rank = 0, workers = 0;
  std::vector<TraceTask> tasks;    ///< [tasks of the graph]
  std::vector<TraceEvent> events;  ///< [events of the graph]
  std::vector<TraceSpan> spans;    ///< by worker, then time

  /// Who held whom up, of this rank: walks back from the last task to end, each time to whichever
  /// ended last of the task before it on its worker and those whose events it awaited.
  TraceSummary summary() const;
  /// [tasks] mean time of each task's body: costs for the next placement. 0 where it never ran.
  std::vector<uint64_t> measured_costs() const;
  /// A file for ui.perfetto.dev: a row a worker, an arrow to each wait from its last signal.
  std::string perfetto() const;
};

/// One file for ui.perfetto.dev of the ranks of a run: a process a rank, and arrows between ranks,
/// too: to each wait from the last signal of each rank to end. All times are on
/// the clock of the lowest rank that ran a task; by how much each other rank's clock was moved for
/// that, and what is sure of it, stands at its process. Throws InvalidArgument if two traces are of
/// one rank.
std::string perfetto(std::span<const Trace> traces);

}  // namespace tokenyard::megakernel
