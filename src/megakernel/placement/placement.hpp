/// Which worker runs which tasks, in which order.
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

/// List scheduling over all ranks at once, by the tasks' costs: whoever has the longest way to the
/// end goes first, to the worker of its rank that can begin it soonest. All queues follow one order
/// of all tasks, so they add no cycle. `events_only`: the graphs' order without queues, without
/// cycles.
Placement place(std::span<const Graph> graphs, const GraphOrder& events_only,
                std::span<const uint32_t> workers);

}  // namespace tokenyard::megakernel
