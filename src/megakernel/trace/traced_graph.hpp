/// Tasks and events for one rank's trace, taken from the graphs of all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"
#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

struct TracedGraph {
  std::vector<TraceTask> tasks;
  std::vector<TraceEvent> events;
};

/// Returns tasks and events of `rank`. `graphs`: [ranks].
TracedGraph traced_graph(std::span<const Graph> graphs, uint32_t rank);

}  // namespace tokenyard::megakernel
