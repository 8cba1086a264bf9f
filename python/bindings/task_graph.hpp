/// Python's handle of a task graph.
#pragma once

#include <memory>
#include <set>

#include "tensor_memory.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::python {

/// A graph and the memory that its tasks access by bare addresses. It includes the memory of
/// tensors that no task of this rank uses, since peers' tasks may.
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
