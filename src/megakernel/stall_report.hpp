/// What the workers of a failed run were waiting for, in words.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megakernel/kernels/run_params.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// "worker 2: task 'down 3' awaits event 'gate/up 3' of iteration 7: has 3 of 4", a line a worker.
std::string dump(const Graph& graph, std::span<const StallRecord> stalls);

/// The first worker's task whose input does not come; null if no task awaits any. Whoever awaits
/// the end of an iteration awaits such a task, and its time may be the first to be up.
const StallRecord* cause_of(std::span<const StallRecord> stalls);
/// Of a static run: the first worker's whose event lacks no signal of a task of this rank that has
/// yet to run, so what it lacks is another rank's, or was never sent. Null if there is none.
const StallRecord* origin_of(const Graph& graph, std::span<const EventTriggers> triggers,
                             std::span<const std::vector<uint32_t>> queues,
                             std::span<const StallRecord> stalls);
/// The rank whose signals a stalled task awaits: another one, if others signal its event.
uint32_t owing_rank(std::span<const EventTriggers> triggers, const StallRecord& stall);
/// "megakernel: task 'down 3' awaits ...".
std::string phase_of(const Graph& graph, const StallRecord& stall);

/// The phases that a report of the run can name: [tasks + kRunPhases]. The one of `task` says what
/// `stall` knows of it.
std::vector<std::string> phase_names(const Graph& graph, uint32_t task, const StallRecord& stall);

}  // namespace tokenyard::megakernel
