#include "megakernel/proofs/proofs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

void prove_acyclic(const GraphOrder& order) {
  const std::vector<GraphOrder::Node> cycle = order.cycle();
  if (cycle.empty()) return;
  std::vector<std::string> witness;
  for (const GraphOrder::Node node : cycle) witness.push_back(order.name(node));
  witness.push_back(order.name(cycle.front()));
  throw InvalidGraph(GraphFault::cycle, std::move(witness),
                     "tasks that do not wait for one another, through events or through a queue");
}

namespace {

/// Proves that the first node of each pair precedes the second, a task that signals in the next
/// iteration.
void prove_held_back(const GraphOrder& order, std::span<const GraphOrder::Pair> pairs,
                     const char* first_is, const char* fix) {
  const std::vector<bool> ordered = order.precedes(pairs);
  const auto found = std::find(ordered.begin(), ordered.end(), false);
  if (found == ordered.end()) return;
  const auto& [first, signals] = pairs[static_cast<size_t>(found - ordered.begin())];
  throw InvalidGraph(GraphFault::runs_ahead,
                     {order.name(signals), "may signal before " + order.name(first),
                      fmt::format("{} in the previous iteration", first_is)},
                     fix);
}

}  // namespace

void prove_counts_apart(std::span<const Graph> graphs, const GraphOrder& order) {
  if (graphs[0].is_once()) return;
  std::vector<std::vector<std::vector<GraphOrder::Node>>> signalling(graphs.size());
  std::vector<std::vector<bool>> awaited(graphs.size());
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    signalling[rank].resize(graphs[rank].events().size());
    awaited[rank].resize(graphs[rank].events().size());
    if (graphs[rank].loop()) awaited[rank][graphs[rank].loop()->id] = true;
  }
  for (const Graph& graph : graphs) {
    const uint32_t rank = graph.place().rank;
    for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
      const GraphOrder::Node next = order.task(rank, task, 1);
      for (const Signal& signal : graph.tasks()[task].signals)
        signalling[signal.rank][signal.event.id].push_back(next);
      for (const Event& event : graph.tasks()[task].expects)
        signalling[rank][event.id].push_back(next);
      for (const Wait& wait : graph.tasks()[task].waits) awaited[rank][wait.event.id] = true;
    }
  }
  std::vector<GraphOrder::Pair> pairs;
  for (uint32_t rank = 0; rank < graphs.size(); ++rank)
    for (uint32_t event = 0; event < signalling[rank].size(); ++event) {
      // A single signaller is ordered after itself.
      if (!awaited[rank][event] || signalling[rank][event].size() < 2) continue;
      for (const GraphOrder::Node next : signalling[rank][event])
        pairs.emplace_back(order.event(rank, event), next);
    }
  prove_held_back(order, pairs, "is complete",
                  "a wait with lag 1, or a loop event, that holds back the next iteration");
}

void prove_arrivals_apart(std::span<const Graph> graphs, const Triggers& triggers,
                          const GraphOrder& order) {
  if (graphs[0].is_once()) return;
  // All of a rank's tasks precede its own next iteration: only signals of other ranks matter.
  std::vector<std::vector<std::vector<GraphOrder::Node>>> from_others(graphs.size());
  for (uint32_t rank = 0; rank < graphs.size(); ++rank)
    from_others[rank].resize(graphs[rank].events().size());
  for (const Graph& graph : graphs)
    for (uint32_t task = 0; task < graph.tasks().size(); ++task)
      for (const Signal& signal : graph.tasks()[task].signals)
        if (signal.rank != graph.place().rank)
          from_others[signal.rank][signal.event.id].push_back(
              order.task(graph.place().rank, task, 1));
  std::vector<GraphOrder::Pair> pairs;
  for (const Graph& graph : graphs) {
    const uint32_t rank = graph.place().rank;
    for (uint32_t task = 0; task < graph.tasks().size(); ++task)
      for (const Wait& wait : graph.tasks()[task].waits)
        if (wait.lag == 0 && triggers[rank][wait.event.id].remote)
          for (const GraphOrder::Node signals : from_others[rank][wait.event.id])
            pairs.emplace_back(order.task(rank, task), signals);
  }
  prove_held_back(order, pairs, "has run",
                  "a static placement, or an event that holds back the next iteration");
}

}  // namespace tokenyard::megakernel
