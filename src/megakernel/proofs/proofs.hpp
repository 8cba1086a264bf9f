/// Properties that a graph's order must have, each proved or refuted with a witness.
#pragma once

#include <span>

#include "megakernel/far_ranks.hpp"
#include "megakernel/proofs/order.hpp"
#include "megakernel/proofs/triggers.hpp"

namespace tokenyard::megakernel {

/// Throws InvalidGraph (cycle), which names tasks and events in the order in which they wait.
void prove_acyclic(const GraphOrder& order);

/// Proves that no event counts signals of two iterations at once. A counter does not record the
/// iteration of a signal, so a task may signal an event for the next iteration only after the event
/// is complete in this one. Throws InvalidGraph (runs_ahead).
void prove_counts_apart(std::span<const Graph> graphs, const GraphOrder& order);

/// Proves the same for arrivals. A dynamic run counts, for each task that awaits several events,
/// how many are complete, so none may complete for the next iteration before the task has run in
/// this one. Throws InvalidGraph (runs_ahead).
void prove_arrivals_apart(std::span<const Graph> graphs, const Triggers& triggers,
                          const GraphOrder& order);

/// Proves that tasks are free of races: two accesses to the same bytes of a tensor, unless both
/// read or both add, are ordered within an iteration, and each precedes the other's repetition in
/// the next iteration. Every byte read was written before, in this iteration or, if the tensor is
/// given, at any time. `visible` is the order in which tasks see each other's memory, which is
/// weaker than `order` where events are carried; tensors of words need only `order`. A write to a
/// far rank is a put: it ends, for this proof, when an event of that rank is complete that its task
/// signals itself, since a network applies no signal before the puts that were posted before it,
/// and promises nothing else. Throws InvalidGraph (read_after_write, write_after_read,
/// write_after_write, across_iterations, no_producer).
void prove_regions(std::span<const Graph> graphs, const GraphOrder& order,
                   const GraphOrder& visible, const FarRanks& far = {});

}  // namespace tokenyard::megakernel
