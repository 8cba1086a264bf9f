/// When each task of a run waited, ran and ended, on one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokenyard::megakernel {

struct TraceSpan {
  uint32_t worker, task;
  uint64_t iteration;
  uint64_t taken_ns, begun_ns, ended_ns;  ///< worker free; events there; done. Of this rank's clock
};

/// A task of this rank whose signal another one awaits.
struct TraceSignal {
  uint32_t task;
  uint32_t lag;  ///< 1: its signal of the iteration before
};

/// One task, and whom it awaits: for flows and critical paths.
struct TraceTask {
  std::string name, type;
  std::vector<TraceSignal> after;
};

struct TraceSummary {
  uint64_t busy_ns = 0, waiting_ns = 0;  ///< of all workers together
  uint64_t length_ns = 0;                ///< from the first task taken to the last one ended
  std::vector<uint32_t> critical_path;   ///< indices of spans, in the order of time
  std::string text(const std::vector<TraceSpan>& spans, const std::vector<TraceTask>& tasks) const;
};

struct Trace {
  uint32_t rank = 0, workers = 0;
  std::vector<TraceTask> tasks;  ///< [tasks of the graph]
  std::vector<TraceSpan> spans;  ///< by worker, then time

  /// Who held whom up: walks back from the last task to end, each time to whichever ended last of
  /// the task before it on its worker and those whose events it awaited.
  TraceSummary summary() const;
  /// [tasks] mean time of each task's body: costs for the next placement. 0 where it never ran.
  std::vector<uint64_t> measured_costs() const;
  /// A file for ui.perfetto.dev: a row a worker, an arrow from each signal to its wait.
  std::string perfetto() const;
};

}  // namespace tokenyard::megakernel
