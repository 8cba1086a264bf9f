/// A graph as Python holds it.
#pragma once

#include <memory>
#include <set>

#include "tensor_memory.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::python {

/// With the memory that its tasks reach: they know bare addresses. A tensor's counts even if no
/// task of this rank uses it, since peers' may.
struct TaskGraph {
  mk::Graph graph;
  std::set<std::shared_ptr<HeldMemory>> memories = {};

  void keep(const Piece& piece) {
    memories.insert(piece.owner);
    const Allocation& whole = *piece.allocation;
    graph.reach(ConstTensorView::bytes_at(whole.begin, whole.bytes), whole.guard);
  }
};

}  // namespace tokenyard::python
