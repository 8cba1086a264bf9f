/// What the graphs of all ranks tell about one rank's trace: its tasks, and whose signals they
/// await.
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

/// `graphs`: [ranks].
TracedGraph traced_graph(std::span<const Graph> graphs, uint32_t rank);

}  // namespace tokenyard::megakernel
