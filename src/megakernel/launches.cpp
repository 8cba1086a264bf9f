#include "megakernel/launches.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Tasks of one event, for each scheduler, from which all of them share the launch.
constexpr uint32_t kMassive = 8;
/// What a scheduler's queue holds besides events: a begin, an end, a stop.
constexpr uint32_t kOthers = 3;

/// [event] Whether a task of this rank signals it: then it is never complete before the iteration
/// has begun here.
std::vector<bool> signalled_here(const Graph& graph) {
  std::vector<bool> here(graph.events().size(), false);
  for (const Graph::TaskNode& task : graph.tasks()) {
    for (const Signal& signal : task.signals)
      if (signal.rank == graph.place().rank && !signal.dynamic) here[signal.event.id] = true;
    for (const Event& event : task.expects) here[event.id] = true;
  }
  return here;
}

/// [event] How many signals of tasks, on whatever rank, an event of this rank has.
std::vector<uint32_t> signals_of_events(std::span<const Graph> graphs, uint32_t rank) {
  std::vector<uint32_t> signals(graphs[rank].events().size(), 0);
  for (const Graph& graph : graphs)
    for (const Graph::TaskNode& task : graph.tasks())
      for (const Signal& signal : task.signals)
        if (signal.rank == rank) ++signals[signal.event.id];
  return signals;
}

/// [event] How many tasks look at its counter themselves: in a later iteration, or at its end.
std::vector<uint32_t> lookers_of_events(const Graph& graph) {
  std::vector<uint32_t> lookers(graph.events().size(), 0);
  for (const Graph::TaskNode& task : graph.tasks())
    for (const Wait& wait : task.waits)
      if (wait.lag > 0) ++lookers[wait.event.id];
  if (graph.loop()) ++lookers[graph.loop()->id];
  return lookers;
}

void check_dynamic_signals(const Graph& graph) {
  for (uint32_t task = 0; task < graph.tasks().size(); ++task)
    for (const Signal& signal : graph.tasks()[task].signals)
      if (signal.dynamic && signal.rank != graph.place().rank)
        throw InvalidGraph(GraphFault::trigger_count,
                           {task_name(graph, task),
                            fmt::format("signals a dynamic event of rank {}", signal.rank)},
                           "a static placement for events that other ranks' tasks count");
}

}  // namespace

Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers, uint32_t schedulers,
                       uint32_t event_slots) {
  Launches launches;
  uint32_t fullest = 0, fullest_rank = 0;
  for (const Graph& graph : graphs) {
    check_dynamic_signals(graph);
    const uint32_t rank = graph.place().rank;
    const size_t events = graph.events().size();
    const std::vector<bool> here = signalled_here(graph);
    std::vector<std::vector<Dependent>> of_event(events + 1);  // The last: of the begin.
    for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
      const Graph::TaskNode& node = graph.tasks()[task];
      // Events of the iteration before are complete, or their rank will complete them whatever
      // happens here: the worker looks at them, and no scheduler counts them.
      Dependent dependent{
          .position = task, .waits = 0, .worker = node.worker.value_or(kAnyWorker), .place = {}};
      bool begins_here = false;
      for (const Wait& wait : node.waits) {
        if (wait.lag > 0) continue;
        ++dependent.waits;
        begins_here = begins_here || here[wait.event.id];
      }
      if (!begins_here) ++dependent.waits;
      for (const Wait& wait : node.waits)
        if (wait.lag == 0) of_event[wait.event.id].push_back(dependent);
      if (!begins_here) of_event[events].push_back(dependent);
    }
    Launches::OfRank& of_rank = launches.ranks_.emplace_back();
    for (const Graph::TaskNode& node : graph.tasks()) {
      const bool leads_on = node.signals.size() == 1 && node.expects.empty() &&
                            !node.signals[0].dynamic && node.signals[0].rank == rank &&
                            !of_event[node.signals[0].event.id].empty();
      of_rank.counted.push_back(!leads_on);
    }
    const std::vector<uint32_t> signals = signals_of_events(graphs, rank);
    const std::vector<uint32_t> lookers = lookers_of_events(graph);
    std::vector<uint32_t> queued(schedulers, kOthers);
    for (uint32_t event = 0; event <= events; ++event) {
      const auto count = static_cast<uint32_t>(of_event[event].size());
      of_rank.begin.push_back(static_cast<uint32_t>(of_rank.dependents.size()));
      of_rank.dependents.insert(of_rank.dependents.end(), of_event[event].begin(),
                                of_event[event].end());
      if (event == events) break;
      Launch launch = Launch::nobody;
      if (count > kMassive * schedulers)
        launch = Launch::every;
      else if (count > 0)  // The last scheduler serves what other ranks signal.
        launch =
            static_cast<Launch>(triggers[rank][event].remote ? schedulers - 1 : event % schedulers);
      for (uint32_t scheduler = 0; scheduler < schedulers; ++scheduler)
        if (launch == Launch::every || launch == static_cast<Launch>(scheduler))
          ++queued[scheduler];
      // (Another rank's signal, or one of a task's body, makes it `sys`.)
      if (count == 1 && of_event[event][0].waits == 1 && of_event[event][0].worker == kAnyWorker &&
          signals[event] == 1 && !triggers[rank][event].sys && lookers[event] == 0)
        launch = Launch::follower;
      of_rank.launch.push_back(launch);
    }
    const uint32_t most = *std::max_element(queued.begin(), queued.end());
    if (most > fullest) fullest_rank = rank;
    fullest = std::max(fullest, most);
  }
  if (event_slots != 0 && event_slots < fullest)
    throw InvalidGraph(
        GraphFault::queue_capacity,
        {fmt::format("a scheduler of rank {} serves {} events", fullest_rank, fullest - kOthers),
         fmt::format("its queue holds {}", event_slots),
         "whoever completes one more waits for the scheduler",
         "which may wait for a place in the queue of that very worker"},
        fmt::format("event_slots of at least {}, or 0", fullest));
  launches.event_slots_ = event_slots != 0 ? event_slots : fullest;
  return launches;
}

}  // namespace tokenyard::megakernel
