#include "megakernel/trace/traced_graph.hpp"

namespace tokenyard::megakernel {

TracedGraph traced_graph(std::span<const Graph> graphs, uint32_t rank) {
  const Graph& graph = graphs[rank];
  TracedGraph traced;
  std::vector<bool> awaited(graph.events().size(), false);
  for (const Graph::TaskNode& node : graph.tasks()) {
    TraceTask& task = traced.tasks.emplace_back(
        TraceTask{.name = node.name,
                  .type = std::string(graph.task_set().types[node.type].name),
                  .waits = {}});
    for (const Wait& wait : node.waits) {
      task.waits.push_back({.event = wait.event.id, .lag = wait.lag});
      awaited[wait.event.id] = true;
    }
  }
  for (const EventOptions& event : graph.events())
    traced.events.push_back({.carried = event.carried, .signals = {}});
  for (const Graph& of_rank : graphs)
    for (uint32_t task = 0; task < of_rank.tasks().size(); ++task)
      for (const Signal& signal : of_rank.tasks()[task].signals)
        if (signal.rank == rank && awaited[signal.event.id])
          traced.events[signal.event.id].signals.push_back(
              {.rank = of_rank.place().rank, .task = task, .dynamic = signal.dynamic});
  return traced;
}

}  // namespace tokenyard::megakernel
