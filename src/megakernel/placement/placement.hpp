/// The tasks that each worker runs, in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

struct Placement {
  std::vector<std::vector<std::vector<uint32_t>>> queues;  ///< [rank][worker] tasks
};

class GraphOrder;

/// Places tasks by list scheduling over all ranks at once: the task with the longest path to the
/// end, by cost, goes first, to the worker of its rank that can start it soonest. All queues follow
/// one order of all tasks, so they add no cycle. `events_only`: the order of the graphs without
/// queues; it must have no cycle.
Placement place(std::span<const Graph> graphs, const GraphOrder& events_only,
                std::span<const uint32_t> workers);

}  // namespace tokenyard::megakernel
