#include "megakernel/proofs/order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megakernel/placement/placement.hpp"
#include "megakernel/proofs/triggers.hpp"

namespace tokenyard::megakernel {

GraphOrder::GraphOrder(std::span<const Graph> graphs, Beside beside, const Placement* placement,
                       Carried carried)
    : graphs_(graphs) {
  for (const Graph& graph : graphs) {
    first_task_.push_back(nodes_an_iteration_);
    nodes_an_iteration_ += static_cast<uint32_t>(graph.tasks().size());
  }
  for (const Graph& graph : graphs) {
    first_event_.push_back(nodes_an_iteration_);
    nodes_an_iteration_ += static_cast<uint32_t>(graph.events().size());
  }
  first_barrier_ = nodes_an_iteration_;
  nodes_an_iteration_ += static_cast<uint32_t>(graphs.size());
  std::vector<Pair> edges;
  add_events(edges, carried);
  if (beside == Beside::queues) add_queues(edges, *placement);
  if (beside == Beside::barriers) add_barriers(edges);

  first_target_.assign(nodes() + 1, 0);
  for (const auto& [from, to] : edges) ++first_target_[from + 1];
  for (Node node = 0; node < nodes(); ++node) first_target_[node + 1] += first_target_[node];
  targets_.resize(edges.size());
  std::vector<uint32_t> next(first_target_.begin(), first_target_.end() - 1);
  for (const auto& [from, to] : edges) targets_[next[from]++] = to;
  sort();
}

void GraphOrder::add_events(std::vector<Pair>& edges, Carried carried) const {
  for (const Graph& graph : graphs_) {
    const uint32_t rank = graph.place().rank;
    for (uint32_t i = 0; i < graph.tasks().size(); ++i) {
      const Graph::TaskNode& node = graph.tasks()[i];
      for (uint32_t iteration = 0; iteration < kIterations; ++iteration) {
        for (const Signal& signal : node.signals)
          edges.emplace_back(task(rank, i, iteration),
                             event(signal.rank, signal.event.id, iteration));
        for (const Event& expected : node.expects)
          edges.emplace_back(task(rank, i, iteration), event(rank, expected.id, iteration));
        for (const Wait& wait : node.waits)
          if (iteration >= wait.lag &&
              (carried == Carried::counts || !graph.events()[wait.event.id].carried))
            edges.emplace_back(event(rank, wait.event.id, iteration - wait.lag),
                               task(rank, i, iteration));
      }
      if (graph.loop()) edges.emplace_back(event(rank, graph.loop()->id, 0), task(rank, i, 1));
    }
  }
}

void GraphOrder::add_barriers(std::vector<Pair>& edges) const {
  for (uint32_t rank = 0; rank < graphs_.size(); ++rank)
    for (uint32_t i = 0; i < graphs_[rank].tasks().size(); ++i) {
      edges.emplace_back(task(rank, i, 0), first_barrier_ + rank);
      edges.emplace_back(first_barrier_ + rank, task(rank, i, 1));
    }
}

void GraphOrder::add_queues(std::vector<Pair>& edges, const Placement& placement) const {
  for (uint32_t rank = 0; rank < placement.queues.size(); ++rank)
    for (const std::vector<uint32_t>& queue : placement.queues[rank]) {
      if (queue.empty()) continue;
      for (uint32_t iteration = 0; iteration < kIterations; ++iteration)
        for (size_t i = 1; i < queue.size(); ++i)
          edges.emplace_back(task(rank, queue[i - 1], iteration), task(rank, queue[i], iteration));
      edges.emplace_back(task(rank, queue.back(), 0), task(rank, queue.front(), 1));
    }
}

void GraphOrder::sort() {
  std::vector<uint32_t> before(nodes(), 0);
  for (const Node to : targets_) ++before[to];
  for (Node node = 0; node < nodes(); ++node)
    if (before[node] == 0) sorted_.push_back(node);
  for (size_t i = 0; i < sorted_.size(); ++i)
    for (const Node to : after(sorted_[i]))
      if (--before[to] == 0) sorted_.push_back(to);
}

std::vector<GraphOrder::Node> GraphOrder::cycle() const {
  if (sorted_.size() == nodes()) return {};
  std::vector<bool> done(nodes(), false);
  for (const Node node : sorted_) done[node] = true;
  // Each unsorted node has an unsorted predecessor, so a walk backwards must close a cycle.
  std::vector<Node> one_before(nodes(), nodes());
  for (Node from = 0; from < nodes(); ++from)
    if (!done[from])
      for (const Node to : after(from)) one_before[to] = from;
  Node node = 0;
  while (done[node]) ++node;
  std::vector<uint32_t> seen_at(nodes(), UINT32_MAX);
  std::vector<Node> walk;
  while (seen_at[node] == UINT32_MAX) {
    seen_at[node] = static_cast<uint32_t>(walk.size());
    walk.push_back(node);
    node = one_before[node];
  }
  walk.erase(walk.begin(), walk.begin() + seen_at[node]);
  std::reverse(walk.begin(), walk.end());
  return walk;
}

std::vector<bool> GraphOrder::precedes(std::span<const Pair> pairs) const {
  // Works in passes. Each propagates as many sources as a node's set has bits, taken in sorted
  // order, and only as far as their last target. Pairs in the opposite order need no pass.
  constexpr uint32_t kWords = 8, kSources = kWords * 64;
  std::vector<uint32_t> place(nodes());
  for (uint32_t i = 0; i < sorted_.size(); ++i) place[sorted_[i]] = i;
  std::vector<uint32_t> by_source;
  for (uint32_t i = 0; i < pairs.size(); ++i)
    if (place[pairs[i].first] < place[pairs[i].second]) by_source.push_back(i);
  std::sort(by_source.begin(), by_source.end(),
            [&](uint32_t a, uint32_t b) { return place[pairs[a].first] < place[pairs[b].first]; });
  std::vector<bool> answers(pairs.size(), false);
  std::vector<std::array<uint64_t, kWords>> reached(nodes());
  for (size_t next = 0; next < by_source.size();) {
    const uint32_t first = place[pairs[by_source[next]].first];
    std::vector<std::pair<uint32_t, uint32_t>> asked;  // Pair, bit of its source.
    uint32_t sources = 0, last = first;
    for (uint32_t i = first; i < sorted_.size(); ++i) reached[sorted_[i]] = {};
    for (; next < by_source.size(); ++next) {
      const auto& [source, target] = pairs[by_source[next]];
      const bool new_source = asked.empty() || pairs[asked.back().first].first != source;
      if (new_source && sources == kSources) break;
      sources += new_source ? 1 : 0;
      last = std::max(last, place[target]);
      reached[source][(sources - 1) / 64] |= uint64_t{1} << (sources - 1) % 64;
      asked.emplace_back(by_source[next], sources - 1);
    }
    for (uint32_t i = first; i < last; ++i)
      for (const Node to : after(sorted_[i]))
        for (uint32_t word = 0; word < kWords; ++word)
          reached[to][word] |= reached[sorted_[i]][word];
    for (const auto& [pair, bit] : asked)
      answers[pair] = (reached[pairs[pair].second][bit / 64] >> bit % 64 & 1) != 0;
  }
  return answers;
}

std::string GraphOrder::name(Node node) const {
  const uint32_t iteration = node / nodes_an_iteration_;
  const uint32_t at = node % nodes_an_iteration_;
  const std::string of = iteration == 0 ? "" : " in the next iteration";
  if (at >= first_barrier_)
    return fmt::format("the end of an iteration on rank {}", at - first_barrier_);
  for (auto rank = static_cast<uint32_t>(graphs_.size()); rank-- > 0;) {
    if (at >= first_event_[rank]) return event_name(graphs_, rank, at - first_event_[rank]) + of;
  }
  for (auto rank = static_cast<uint32_t>(graphs_.size()); rank-- > 0;)
    if (at >= first_task_[rank]) return task_name(graphs_[rank], at - first_task_[rank]) + of;
  return fmt::format("node {}", node);
}

}  // namespace tokenyard::megakernel
