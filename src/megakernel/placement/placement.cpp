#include "megakernel/placement/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <tuple>

#include "megakernel/proofs/order.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

struct Place {
  uint32_t rank, task;
};

/// Cost in ns and place of each node of the first iteration. Events cost nothing.
struct Costs {
  std::vector<uint64_t> own, to_end;
  std::vector<Place> places;
  std::vector<bool> is_task;
};

Costs costs_of(std::span<const Graph> graphs, const GraphOrder& order) {
  const uint32_t nodes = order.nodes() / GraphOrder::kIterations;
  Costs costs{.own = std::vector<uint64_t>(nodes, 0),
              .to_end = std::vector<uint64_t>(nodes, 0),
              .places = std::vector<Place>(nodes),
              .is_task = std::vector<bool>(nodes, false)};
  for (uint32_t rank = 0; rank < graphs.size(); ++rank)
    for (uint32_t task = 0; task < graphs[rank].tasks().size(); ++task) {
      const GraphOrder::Node node = order.task(rank, task);
      costs.own[node] = graphs[rank].tasks()[task].cost_ns;
      costs.places[node] = {rank, task};
      costs.is_task[node] = true;
    }
  for (auto node = order.sorted().rbegin(); node != order.sorted().rend(); ++node) {
    if (*node >= nodes) continue;
    uint64_t longest = 0;
    for (const GraphOrder::Node to : order.after(*node))
      if (to < nodes) longest = std::max(longest, costs.to_end[to]);
    costs.to_end[*node] = costs.own[*node] + longest;
  }
  return costs;
}

uint32_t soonest(const std::vector<uint64_t>& free_ns, uint64_t ready_ns) {
  uint32_t best = 0;
  for (uint32_t worker = 0; worker < free_ns.size(); ++worker)
    if (std::max(free_ns[worker], ready_ns) < std::max(free_ns[best], ready_ns)) best = worker;
  return best;
}

}  // namespace

Placement place(std::span<const Graph> graphs, const GraphOrder& events_only,
                std::span<const uint32_t> workers) {
  const uint32_t nodes = events_only.nodes() / GraphOrder::kIterations;
  const Costs costs = costs_of(graphs, events_only);
  std::vector<uint32_t> before(nodes, 0);
  for (GraphOrder::Node node = 0; node < nodes; ++node)
    for (const GraphOrder::Node to : events_only.after(node))
      if (to < nodes) ++before[to];

  Placement placement;
  std::vector<std::vector<uint64_t>> free_ns;
  for (const uint32_t count : workers) {
    placement.queues.emplace_back(count);
    free_ns.emplace_back(count, 0);
  }
  // Longest path first; ties in order of declaration, so that all ranks place alike.
  using Ready = std::tuple<uint64_t, int64_t>;
  std::priority_queue<Ready> ready;
  std::vector<uint64_t> ready_ns(nodes, 0);
  const auto offer = [&](GraphOrder::Node node) {
    ready.emplace(costs.to_end[node], -static_cast<int64_t>(node));
  };
  for (GraphOrder::Node node = 0; node < nodes; ++node)
    if (before[node] == 0) offer(node);
  while (!ready.empty()) {
    const auto node = static_cast<GraphOrder::Node>(-std::get<1>(ready.top()));
    ready.pop();
    uint64_t end_ns = ready_ns[node];
    if (costs.is_task[node]) {
      const auto [rank, task] = costs.places[node];
      const Graph::TaskNode& options = graphs[rank].tasks()[task];
      if (options.worker && *options.worker >= workers[rank])
        throw InvalidArgument(fmt::format("worker of task '{}'", options.name),
                              fmt::format("below {}", workers[rank]),
                              fmt::format("{}", *options.worker));
      const uint32_t worker =
          options.worker ? *options.worker : soonest(free_ns[rank], ready_ns[node]);
      placement.queues[rank][worker].push_back(task);
      end_ns = std::max(free_ns[rank][worker], ready_ns[node]) + costs.own[node];
      free_ns[rank][worker] = end_ns;
    }
    for (const GraphOrder::Node to : events_only.after(node)) {
      if (to >= nodes) continue;
      ready_ns[to] = std::max(ready_ns[to], end_ns);
      if (--before[to] == 0) offer(to);
    }
  }
  return placement;
}

}  // namespace tokenyard::megakernel
