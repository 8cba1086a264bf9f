/// The order that holds in every run, whatever the timing: two iterations of all ranks' graphs as
/// one graph of tasks and events.
///
///     a task                 -> the events that it signals or expects
///     an event               -> the tasks that await it (of the next iteration, if they lag)
///     a task                 -> the next in its worker's queue; the last -> the first of the next
///                               iteration
///     a loop's event         -> every task of its rank in the next iteration
///     all tasks of a rank    -> all of its next iteration, in dynamic runs, which have no queues
///
/// Two iterations suffice: queues repeat, so an order between neighbouring iterations holds between
/// all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

struct Placement;

class GraphOrder {
 public:
  using Node = uint32_t;
  using Pair = std::pair<Node, Node>;
  static constexpr uint32_t kIterations = 2;

  enum class Beside : uint8_t { events_only, queues, barriers };
  /// `beside`: what orders tasks in addition to events: nothing, the queues of `placement`, or a
  /// barrier per rank between iterations. With carried events left out, this is the order in which
  /// tasks see each other's memory.
  enum class Carried : uint8_t { counts, left_out };
  GraphOrder(std::span<const Graph> graphs, Beside beside, const Placement* placement = nullptr,
             Carried carried = Carried::counts);

  Node task(uint32_t rank, uint32_t task, uint32_t iteration = 0) const {
    return iteration * nodes_an_iteration_ + first_task_[rank] + task;
  }
  Node event(uint32_t rank, uint32_t event, uint32_t iteration = 0) const {
    return iteration * nodes_an_iteration_ + first_event_[rank] + event;
  }
  std::string name(Node node) const;

  /// Returns nodes of a cycle, each of which waits for the previous one; empty if there is none.
  std::vector<Node> cycle() const;
  /// Returns, [pairs], whether the first node precedes the second in every run. Requires that there
  /// is no cycle.
  std::vector<bool> precedes(std::span<const Pair> pairs) const;

  /// Returns all nodes in a topological order; `after` returns the successors of a node.
  const std::vector<Node>& sorted() const { return sorted_; }
  std::span<const Node> after(Node node) const {
    return {targets_.data() + first_target_[node], targets_.data() + first_target_[node + 1]};
  }
  uint32_t nodes() const { return nodes_an_iteration_ * kIterations; }

 private:
  void add_events(std::vector<Pair>& edges, Carried carried) const;
  void add_barriers(std::vector<Pair>& edges) const;
  void add_queues(std::vector<Pair>& edges, const Placement& placement) const;
  void sort();

  std::span<const Graph> graphs_;
  std::vector<uint32_t> first_task_, first_event_;  ///< [ranks] within an iteration
  uint32_t first_barrier_ = 0;                      ///< likewise, one per rank
  uint32_t nodes_an_iteration_ = 0;
  std::vector<uint32_t> first_target_;  ///< [nodes + 1]
  std::vector<Node> targets_;
  std::vector<Node> sorted_;  ///< shorter than nodes() if there is a cycle
};

}  // namespace tokenyard::megakernel
