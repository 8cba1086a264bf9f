/// What must hold of a graph's order, each proved or refuted with a witness.
#pragma once

#include <span>

#include "megakernel/proofs/order.hpp"
#include "megakernel/proofs/triggers.hpp"

namespace tokenyard::megakernel {

/// Throws InvalidGraph (cycle) naming tasks and events in the order in which they wait.
void prove_acyclic(const GraphOrder& order);

/// An event's counter does not say which iteration a signal belongs to. So every task that signals
/// it in the next iteration must come after it was complete in this one. Throws InvalidGraph
/// (runs_ahead).
void prove_counts_apart(std::span<const Graph> graphs, const GraphOrder& order);

/// A dynamic run counts, for each task that awaits several events, how many have come: so none may
/// come for the next iteration before the task has run in this one. Throws InvalidGraph
/// (runs_ahead).
void prove_arrivals_apart(std::span<const Graph> graphs, const Triggers& triggers,
                          const GraphOrder& order);

/// Who touches the same bytes of a tensor, and not only to read or only to add, is ordered: within
/// an iteration one way or the other, and before whatever the next iteration does there. What is
/// read was written before, in this iteration or, where the tensor is given, ever.
/// `visible` is the order in which tasks see each other's memory, less than `order` where events
/// are carried: tensors that are words need only the latter. Throws InvalidGraph (read_after_write,
/// write_after_read, write_after_write, across_iterations, no_producer).
void prove_regions(std::span<const Graph> graphs, const GraphOrder& order,
                   const GraphOrder& visible);

}  // namespace tokenyard::megakernel
