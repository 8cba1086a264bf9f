/// Describes what the workers of a failed run were waiting for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megakernel/kernels/run_params.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// Returns one line per worker, for example "rank 0 worker 2: task 'down 3' awaits event 'gate/up
/// 3' of iteration 7: has 3 of 4".
std::string dump(const Graph& graph, std::span<const StallRecord> stalls);

/// Returns the record of the first worker whose task awaits input; null if there is none. Workers
/// that await the end of an iteration await such a task, and may time out before it.
const StallRecord* cause_of(std::span<const StallRecord> stalls);
/// Returns, for a static run, the record of the first worker whose event lacks no signal of a
/// pending task of this rank: the missing signal is another rank's, or was never sent. Null if
/// there is none.
const StallRecord* origin_of(const Graph& graph, std::span<const EventTriggers> triggers,
                             std::span<const std::vector<uint32_t>> queues,
                             std::span<const StallRecord> stalls);
/// Returns the rank whose signals a stalled task awaits: another rank if any signals the event.
uint32_t owing_rank(std::span<const EventTriggers> triggers, const StallRecord& stall);
/// Returns, for example, "megakernel: task 'down 3' awaits ...".
std::string phase_of(const Graph& graph, const StallRecord& stall);

/// Returns the names of the phases in a report, [tasks + kRunPhases]. That of `task` includes the
/// details of `stall`.
std::vector<std::string> phase_names(const Graph& graph, uint32_t task, const StallRecord& stall);

}  // namespace tokenyard::megakernel
