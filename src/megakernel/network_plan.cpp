#include "megakernel/network_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

[[noreturn]] void refuse(std::vector<std::string> witness, std::string fix) {
  throw InvalidGraph(GraphFault::between_hosts, std::move(witness), std::move(fix));
}

std::string bytes_text(const Graph& graph, const Region& region) {
  return fmt::format("bytes [{}, {}) of tensor '{}' of rank {}, which is on another host",
                     region.begin, region.end, graph.tensors()[region.tensor].name, region.rank);
}

/// The checks of one rank's graph.
class FarCheck {
 public:
  FarCheck(std::span<const Graph> graphs, const Graph& graph, const FarRanks& far)
      : graphs_(graphs), graph_(graph), far_(far) {}

  void run() {
    for (uint32_t task = 0; task < graph_.tasks().size(); ++task) {
      const Graph::TaskNode& node = graph_.tasks()[task];
      for (const Signal& signal : node.signals) check_signal(task, signal);
      refuse_far(task, node.reads, "reads");
      refuse_far(task, node.streams, "streams");
      refuse_far(task, node.adds, "adds to");
      for (const Region& region : node.writes)
        if (is_far(region)) check_write(task, region);
    }
  }

 private:
  bool is_far(const Region& region) const {
    return region.begin < region.end && far_.between(graph_.place().rank, region.rank);
  }

  void check_signal(uint32_t task, const Signal& signal) const {
    if (!far_.between(graph_.place().rank, signal.rank)) return;
    const EventOptions& event = graphs_[signal.rank].events()[signal.event.id];
    if (!event.carried && !signal.dynamic) return;
    refuse({task_name(graph_, task),
            fmt::format("signals {}, which is on another host",
                        event_name(graphs_, signal.rank, signal.event.id)),
            event.carried ? "which is carried by words" : "a number of times known at run time"},
           "events of ranks on other hosts that are counted, by a number that the graph declares");
  }

  void refuse_far(uint32_t task, const std::vector<Region>& regions, const char* verb) const {
    for (const Region& region : regions)
      if (is_far(region))
        refuse({task_name(graph_, task), fmt::format("{} {}", verb, bytes_text(graph_, region))},
               "tasks that only write memory of ranks on other hosts, such as copy_to_peer, and "
               "tasks of that rank that read it, such as reduce");
  }

  void check_write(uint32_t task, const Region& region) {
    const std::string writes = "writes " + bytes_text(graph_, region);
    if (graph_.tensors()[region.tensor].words)
      refuse({task_name(graph_, task), writes, "and its words order tasks by themselves"},
             "a tensor without words, and a counted event");
    const auto& signals = graph_.tasks()[task].signals;
    if (std::ranges::none_of(signals, [&](const Signal& s) { return s.rank == region.rank; }))
      refuse({task_name(graph_, task), writes, "and signals no event of that rank"},
             "a signal of the writing task itself to that rank: its put lands before the signal");
    auto& written = written_[{region.rank, region.tensor}];
    for (const Written& other : written)
      if (other.task != task && other.begin < region.end && region.begin < other.end)
        refuse({task_name(graph_, task), writes,
                fmt::format("which {} writes, too", task_name(graph_, other.task))},
               "one task of each rank that writes them");
    written.push_back({.begin = region.begin, .end = region.end, .task = task});
  }

  struct Written {
    uint64_t begin, end;
    uint32_t task;
  };

  std::span<const Graph> graphs_;
  const Graph& graph_;
  const FarRanks& far_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Written>> written_;  ///< by rank and tensor
};

/// Sorts regions, and makes one of those that overlap or touch.
std::vector<Region> merged(std::vector<Region> regions) {
  std::ranges::sort(regions, {}, [](const Region& r) { return std::pair(r.tensor, r.begin); });
  std::vector<Region> apart;
  for (const Region& region : regions) {
    if (!apart.empty() && apart.back().tensor == region.tensor && region.begin <= apart.back().end)
      apart.back().end = std::max(apart.back().end, region.end);
    else
      apart.push_back(region);
  }
  return apart;
}

}  // namespace

void check_far_accesses(std::span<const Graph> graphs, const FarRanks& far) {
  if (!far.any()) return;
  for (const Graph& graph : graphs) FarCheck(graphs, graph, far).run();
}

std::vector<uint32_t> NetworkPlan::signals_of(uint32_t task) const {
  std::vector<uint32_t> events;
  if (sent[task] == kNoEvent) return events;
  events.push_back(sent[task]);
  for (const FarMessage& message : messages)
    if (message.task == task) events.push_back(published[message.rank]);
  return events;
}

NetworkPlan plan_network(std::span<const Graph> graphs, uint32_t rank, const FarRanks& far) {
  NetworkPlan plan;
  if (!far.any()) return plan;
  const Graph& graph = graphs[rank];
  const size_t tasks = graph.tasks().size();
  plan.sent.assign(tasks, kNoEvent);
  plan.read.assign(tasks, kNoEvent);
  plan.read_signals.assign(tasks, 0);
  const auto event_after = [&](std::string name) {
    plan.events.push_back(std::move(name));
    return static_cast<uint32_t>(graph.events().size() + plan.events.size() - 1);
  };
  plan.published.assign(graphs.size(), kNoEvent);
  for (const uint32_t to : far.of(rank)) {
    plan.published[to] = event_after(fmt::format("news for the network to rank {}", to));
    for (uint32_t task = 0; task < tasks; ++task) {
      const Graph::TaskNode& node = graph.tasks()[task];
      FarMessage message{.task = task, .rank = to, .writes = {}, .signals = {}};
      for (const Region& region : node.writes)
        if (region.rank == to && region.begin < region.end) message.writes.push_back(region);
      for (const Signal& signal : node.signals)
        if (signal.rank == to) message.signals.push_back(signal);
      if (message.signals.empty()) continue;
      message.writes = merged(std::move(message.writes));
      if (plan.sent[task] == kNoEvent)
        plan.sent[task] = event_after(fmt::format("the end of '{}', for the network", node.name));
      if (!message.writes.empty()) {
        if (plan.read[task] == kNoEvent)
          plan.read[task] =
              event_after(fmt::format("the network has read what '{}' put", node.name));
        ++plan.read_signals[task];
      }
      plan.messages.push_back(std::move(message));
    }
  }
  std::vector<bool> incoming(graph.events().size());
  for (const uint32_t from : far.of(rank))
    for (const Graph::TaskNode& node : graphs[from].tasks())
      for (const Signal& signal : node.signals)
        if (signal.rank == rank) incoming[signal.event.id] = true;
  for (uint32_t event = 0; event < incoming.size(); ++event)
    if (incoming[event]) plan.incoming.push_back(event);
  return plan;
}

}  // namespace tokenyard::megakernel
