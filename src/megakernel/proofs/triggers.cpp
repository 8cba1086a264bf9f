#include "megakernel/proofs/triggers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "megakernel/kernels/packet.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

[[noreturn]] void throw_differ(uint32_t rank, std::string what, std::string zero,
                               std::string other) {
  throw InvalidGraph(
      GraphFault::tables_differ,
      {fmt::format("{} of rank 0: {}", what, zero), fmt::format("of rank {}: {}", rank, other)},
      "the same types, tensors and events in the same order on all ranks");
}

std::string types_text(const TaskSet& set) {
  std::string text;
  for (const TaskType& type : set.types)
    text += fmt::format("{}{}({})", text.empty() ? "" : " ", type.name, type.args_bytes);
  return text;
}

std::string event_text(const Graph& graph, size_t event) {
  if (event >= graph.events().size()) return "none";
  const EventOptions& options = graph.events()[event];
  return fmt::format("'{}' (at most {} dynamic signals{})", options.name, options.dynamic_max,
                     options.carried ? ", carried by the data" : "");
}

std::string tensor_text(const Graph& graph, size_t tensor) {
  if (tensor >= graph.tensors().size()) return "none";
  const TensorOptions& options = graph.tensors()[tensor];
  return fmt::format("'{}' of {} bytes{}", options.name, options.bytes,
                     options.words ? ", all words" : "");
}

/// Tasks that use one event of one rank.
struct Users {
  std::vector<std::string> expecting = {};  ///< names of tasks
  bool any = false;                         ///< whether any task signals, expects or awaits it
};

[[noreturn]] void throw_not_dynamic(std::string who, std::string event) {
  throw InvalidGraph(GraphFault::trigger_count,
                     {std::move(who), std::move(event), "whose count is static"},
                     "dynamic_max on an event whose count is known only at run time");
}

void check_expects(std::span<const Graph> graphs, uint32_t rank, uint32_t event,
                   const Users& users) {
  const std::vector<std::string>& expecting = users.expecting;
  const uint32_t most = graphs[rank].events()[event].dynamic_max;
  if (most > 0 && users.any && expecting.size() != 1)
    throw InvalidGraph(GraphFault::trigger_count,
                       {event_name(graphs, rank, event),
                        fmt::format("gets its count from {} tasks", expecting.size())},
                       "exactly one task that calls expect() for each dynamic event in use");
  if (most == 0 && !expecting.empty())
    throw_not_dynamic(expecting.front() + " calls expect()", event_name(graphs, rank, event));
}

/// Checks that the loop's event is counted and signalled: its counter ends each iteration.
void check_loop(std::span<const Graph> graphs, const Graph& graph, const Triggers& all) {
  if (!graph.loop()) return;
  const uint32_t rank = graph.place().rank, event = graph.loop()->id;
  const bool carried = graph.events()[event].carried;
  if (all[rank][event].triggers > 0 && !carried) return;
  throw InvalidGraph(
      GraphFault::unreachable,
      {fmt::format("the loop of rank {}", rank), "awaits " + event_name(graphs, rank, event),
       carried ? "which is carried by data and has no counter" : "which no task signals"},
      "a task that signals the loop's event, and a loop event that is not carried");
}

}  // namespace

std::string task_name(const Graph& graph, uint32_t task) {
  return fmt::format("task '{}' of rank {}", graph.tasks()[task].name, graph.place().rank);
}

std::string event_name(std::span<const Graph> graphs, uint32_t rank, uint32_t event) {
  return fmt::format("event '{}' of rank {}", graphs[rank].events()[event].name, rank);
}

void check_tables(std::span<const Graph> graphs) {
  const Graph& zero = graphs[0];
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    const Graph& other = graphs[rank];
    if (other.place().rank != rank || other.place().ranks != graphs.size())
      throw InvalidGraph(GraphFault::tables_differ,
                         {fmt::format("rank {} of {} got a graph built for rank {} of {}", rank,
                                      graphs.size(), other.place().rank, other.place().ranks)},
                         "a graph that was built for its rank and this world's size");
    if (other.is_once() != zero.is_once() || other.loop().has_value() != zero.loop().has_value())
      throw_differ(rank, "iterations", zero.is_once() ? "one a run" : "many",
                   other.is_once() ? "one a run" : "many");
    if (types_text(zero.task_set()) != types_text(other.task_set()))
      throw_differ(rank, "types", types_text(zero.task_set()), types_text(other.task_set()));
    for (size_t i = 0; i < std::max(zero.events().size(), other.events().size()); ++i)
      if (event_text(zero, i) != event_text(other, i))
        throw_differ(rank, fmt::format("event {}", i), event_text(zero, i), event_text(other, i));
    for (size_t i = 0; i < std::max(zero.tensors().size(), other.tensors().size()); ++i)
      if (tensor_text(zero, i) != tensor_text(other, i))
        throw_differ(rank, fmt::format("tensor {}", i), tensor_text(zero, i),
                     tensor_text(other, i));
  }
}

Triggers count_triggers(std::span<const Graph> graphs) {
  Triggers all(graphs.size());
  std::vector<std::vector<Users>> users(graphs.size());
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    all[rank].resize(graphs[rank].events().size());
    users[rank].resize(graphs[rank].events().size());
  }
  for (const Graph& graph : graphs)
    for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
      const Graph::TaskNode& node = graph.tasks()[task];
      for (const Signal& signal : node.signals) {
        EventTriggers& event = all[signal.rank][signal.event.id];
        users[signal.rank][signal.event.id].any = true;
        if (!signal.dynamic)
          event.triggers += signal.count;
        else if (graphs[signal.rank].events()[signal.event.id].dynamic_max == 0)
          throw_not_dynamic(task_name(graph, task) + " signals a number of times known at run time",
                            event_name(graphs, signal.rank, signal.event.id));
        const uint32_t signaller = graph.place().rank;
        event.others |=
            signaller == signal.rank || (event.remote && event.remote_rank != signaller);
        if (signal.rank == signaller) continue;
        event.remote = event.sys = true;
        event.remote_rank = signaller;
      }
      for (const Event& event : node.expects) {
        all[graph.place().rank][event.id].others = true;
        users[graph.place().rank][event.id].any = true;
        users[graph.place().rank][event.id].expecting.push_back(task_name(graph, task));
      }
      for (const Wait& wait : node.waits) users[graph.place().rank][wait.event.id].any = true;
    }
  for (uint32_t rank = 0; rank < graphs.size(); ++rank)
    for (uint32_t event = 0; event < all[rank].size(); ++event) {
      const EventOptions& options = graphs[rank].events()[event];
      if (options.count && *options.count != all[rank][event].triggers)
        throw InvalidGraph(GraphFault::trigger_count,
                           {event_name(graphs, rank, event),
                            fmt::format("declares {} signals and gets {}", *options.count,
                                        all[rank][event].triggers)},
                           "as many signals from all ranks as the event declares");
      check_expects(graphs, rank, event, users[rank][event]);
      if (!users[rank][event].any || options.dynamic_max == 0) continue;
      all[rank][event].triggers += dynamic_triggers(options.dynamic_max);
      all[rank][event].sys = true;  // Task bodies signal at sys scope, whichever the rank.
    }
  for (const Graph& graph : graphs) {
    const uint32_t rank = graph.place().rank;
    for (uint32_t task = 0; task < graph.tasks().size(); ++task)
      for (const Wait& wait : graph.tasks()[task].waits)
        if (all[rank][wait.event.id].triggers == 0)
          throw InvalidGraph(
              GraphFault::unreachable,
              {task_name(graph, task), "awaits " + event_name(graphs, rank, wait.event.id),
               "which no task signals"},
              "a task that signals each awaited event");
    check_loop(graphs, graph, all);
  }
  return all;
}

std::vector<bool> awaited_events(const Graph& graph, uint32_t lag_max) {
  std::vector<bool> awaited(graph.events().size());
  if (graph.loop()) awaited[graph.loop()->id] = true;
  for (const Graph::TaskNode& task : graph.tasks())
    for (const Wait& wait : task.waits)
      if (wait.lag <= lag_max) awaited[wait.event.id] = true;
  return awaited;
}

std::vector<std::string> dynamic_signallers(std::span<const Graph> graphs, uint32_t rank) {
  std::vector<std::string> signallers(graphs[rank].events().size());
  // An event that the run's last iteration awaited gets no signal after the end of the run.
  const std::vector<bool> complete = awaited_events(graphs[rank], 0);
  for (const Graph& graph : graphs)
    for (uint32_t task = 0; task < graph.tasks().size(); ++task)
      for (const Signal& signal : graph.tasks()[task].signals) {
        if (!signal.dynamic || signal.rank != rank || !complete[signal.event.id]) continue;
        std::string& names = signallers[signal.event.id];
        names += (names.empty() ? "" : ", ") + task_name(graph, task);
      }
  return signallers;
}

}  // namespace tokenyard::megakernel
