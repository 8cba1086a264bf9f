#include "megakernel/stall_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tokenyard::megakernel {

namespace {

std::string task_text(const Graph& graph, uint32_t task) {
  return task < graph.tasks().size() ? fmt::format("task '{}'", graph.tasks()[task].name)
                                     : fmt::format("task {}", task);
}

std::string event_text(const Graph& graph, uint32_t event) {
  return event < graph.events().size() ? fmt::format("event '{}'", graph.events()[event].name)
                                       : fmt::format("event {}", event);
}

std::string text(const Graph& graph, const StallRecord& stall) {
  switch (stall.what) {
    case Stalled::nothing:
      return "between tasks";
    case Stalled::event:
      return fmt::format("{} awaits {} of iteration {}: has {} of {}", task_text(graph, stall.task),
                         event_text(graph, stall.event), stall.iteration, stall.have, stall.need);
    case Stalled::carried:
      return fmt::format("{} awaits the words of {} of iteration {}", task_text(graph, stall.task),
                         event_text(graph, stall.event), stall.iteration);
    case Stalled::units:
      return fmt::format("{} of iteration {} awaits its streamed data",
                         task_text(graph, stall.task), stall.iteration);
    case Stalled::packet:
      return "awaits its next task";
    case Stalled::ready_word:
      return fmt::format("awaits rank {}: is at run {}, needs {}", stall.rank, stall.have,
                         stall.need);
    case Stalled::loop:
      return fmt::format("awaits the loop's {} of iteration {}: has {} of {}",
                         event_text(graph, stall.event), stall.iteration, stall.have, stall.need);
    case Stalled::host:
      return "awaits the host";
    case Stalled::surplus:
      return fmt::format("{} counts {} signals to {} of iteration {}, expected {}",
                         task_text(graph, stall.task), stall.have, event_text(graph, stall.event),
                         stall.iteration, stall.need);
    case Stalled::far_loop:
      return fmt::format("{} ends the loop of rank {}, which is on another host",
                         task_text(graph, stall.task), stall.have);
    case Stalled::queue:
      return fmt::format("awaits a free slot in a queue of rank {}", stall.rank);
  }
  return "unknown";
}

}  // namespace

std::string dump(const Graph& graph, std::span<const StallRecord> stalls) {
  std::string all;
  for (size_t worker = 0; worker < stalls.size(); ++worker)
    all += fmt::format("{}rank {} worker {}: {}", worker == 0 ? "" : "\n", graph.place().rank,
                       worker, text(graph, stalls[worker]));
  return all;
}

const StallRecord* cause_of(std::span<const StallRecord> stalls) {
  const auto found = std::find_if(stalls.begin(), stalls.end(), [](const StallRecord& stall) {
    return stall.what == Stalled::event || stall.what == Stalled::carried ||
           stall.what == Stalled::units;
  });
  return found == stalls.end() ? nullptr : &*found;
}

namespace {

bool awaits_an_event(const StallRecord& stall) {
  return stall.what == Stalled::event || stall.what == Stalled::carried;
}

/// Returns whether a worker with this stall record has yet to run the task at position `at` of its
/// queue in `iteration`.
bool has_yet_to_run(const std::vector<uint32_t>& queue, const StallRecord& stall, size_t at,
                    uint64_t iteration) {
  if (stall.what == Stalled::loop) return iteration > stall.iteration;
  if (!awaits_an_event(stall) && stall.what != Stalled::units) return false;
  if (iteration != stall.iteration) return iteration > stall.iteration;
  const auto stalled = std::find(queue.begin(), queue.end(), stall.task) - queue.begin();
  return at >= static_cast<size_t>(stalled);
}

}  // namespace

const StallRecord* origin_of(const Graph& graph, std::span<const EventTriggers> triggers,
                             std::span<const std::vector<uint32_t>> queues,
                             std::span<const StallRecord> stalls) {
  for (const StallRecord& stall : stalls) {
    if (!awaits_an_event(stall)) continue;
    // The needed count gives the iteration of the missing signals.
    const uint64_t iteration = stall.what == Stalled::event && triggers[stall.event].triggers > 0
                                   ? stall.need / triggers[stall.event].triggers - 1
                                   : stall.iteration;
    bool owed_here = false;
    for (size_t worker = 0; worker < queues.size() && worker < stalls.size(); ++worker)
      for (size_t at = 0; at < queues[worker].size() && !owed_here; ++at)
        for (const Signal& signal : graph.tasks()[queues[worker][at]].signals)
          owed_here |= signal.rank == graph.place().rank && signal.event.id == stall.event &&
                       has_yet_to_run(queues[worker], stalls[worker], at, iteration);
    if (!owed_here) return &stall;
  }
  return nullptr;
}

uint32_t owing_rank(std::span<const EventTriggers> triggers, const StallRecord& stall) {
  return awaits_an_event(stall) && triggers[stall.event].remote ? triggers[stall.event].remote_rank
                                                                : stall.rank;
}

std::string phase_of(const Graph& graph, const StallRecord& stall) {
  return "megakernel: " + text(graph, stall);
}

std::vector<std::string> phase_names(const Graph& graph, uint32_t task, const StallRecord& stall) {
  std::vector<std::string> names(graph.tasks().size(), "megakernel: a task");
  if (task < names.size()) names[task] = phase_of(graph, stall);
  const size_t iteration = names.size() + static_cast<size_t>(RunPhase::iteration);
  for (const char* name : {"a rank begins the run", "the end of an iteration", "the next task",
                           "a task's streamed data", "the host", "a free slot in a queue",
                           "tasks of an iteration", "a request of the network"})
    names.push_back(fmt::format("megakernel: {}", name));
  // In a dynamic run, the leader names the task that cannot begin.
  if (task == iteration) names[iteration] = phase_of(graph, stall);
  return names;
}

}  // namespace tokenyard::megakernel
