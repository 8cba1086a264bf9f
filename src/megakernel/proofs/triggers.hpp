/// The number of signals that complete each event, and the proofs that need no order: ranks declare
/// the same tables, counts are right, and every awaited event is signalled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

struct EventTriggers {
  uint32_t triggers = 0;     ///< signals per iteration, dynamic_triggers included
  bool remote = false;       ///< whether other ranks signal it
  bool sys = false;          ///< whether additions to its counter are at sys scope
  uint32_t remote_rank = 0;  ///< one of the other ranks that signal it
  bool others = false;       ///< whether a rank other than remote_rank signals it as well
};
using Triggers = std::vector<std::vector<EventTriggers>>;  ///< [rank][event]

/// Throws InvalidGraph (tables_differ) unless graph r belongs to rank r and all graphs declare the
/// same types, tensors and events.
void check_tables(std::span<const Graph> graphs);

/// Returns the signals of every event. Throws InvalidGraph (trigger_count, unreachable).
Triggers count_triggers(std::span<const Graph> graphs);

/// Return, for example, "task 'x' of rank 0" and "event 'e' of rank 1".
std::string task_name(const Graph& graph, uint32_t task);
std::string event_name(std::span<const Graph> graphs, uint32_t rank, uint32_t event);

/// Returns, [events], whether a task of the rank or its loop awaits the event at most `lag_max`
/// iterations back.
std::vector<bool> awaited_events(const Graph& graph, uint32_t lag_max = UINT32_MAX);

/// Returns, [events of a rank], the names of all ranks' tasks whose bodies signal the event. Empty
/// if there are none, or if their last signals may come after the end of a run.
std::vector<std::string> dynamic_signallers(std::span<const Graph> graphs, uint32_t rank);

}  // namespace tokenyard::megakernel
