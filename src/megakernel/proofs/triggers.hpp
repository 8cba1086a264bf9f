/// How many signals complete each event, and the proofs that need no order: that the ranks declare
/// the same things, that counts are right, that whatever is awaited is signalled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

struct EventTriggers {
  uint32_t triggers = 0;     ///< an iteration, dynamic_triggers included
  bool remote = false;       ///< whether other ranks signal it
  bool sys = false;          ///< whether its counter is added to at sys scope
  uint32_t remote_rank = 0;  ///< one that does
  bool others = false;       ///< whether a rank other than remote_rank signals it as well
};
using Triggers = std::vector<std::vector<EventTriggers>>;  ///< [rank][event]

/// Throws InvalidGraph (tables_differ) unless graph r is that of rank r, and all declare the same.
void check_tables(std::span<const Graph> graphs);

/// Throws InvalidGraph (trigger_count, unreachable).
Triggers count_triggers(std::span<const Graph> graphs);

/// "task 'x' of rank 0", "event 'e' of rank 1".
std::string task_name(const Graph& graph, uint32_t task);
std::string event_name(std::span<const Graph> graphs, uint32_t rank, uint32_t event);

/// Returns, for each event, whether a task of the rank or its loop awaits it, at most `lag_max`
/// iterations back.
std::vector<bool> awaited_events(const Graph& graph, uint32_t lag_max = UINT32_MAX);

/// [events of a rank] the tasks of all ranks whose bodies signal it, by name. Empty: none do, or
/// their last signals may come after the end of a run.
std::vector<std::string> dynamic_signallers(std::span<const Graph> graphs, uint32_t rank);

}  // namespace tokenyard::megakernel
