/// Errors of a graph and of its runs.
#pragma once

#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

enum class GraphFault : uint8_t {
  cycle,             ///< tasks wait for one another, through events or through the order of a queue
  trigger_count,     ///< an event gets more or fewer signals than it declares
  runs_ahead,        ///< a signal of one iteration may be counted for the previous one
  unreachable,       ///< a task awaits an event that no task signals
  no_producer,       ///< a task reads a region that no earlier task wrote
  read_after_write,  ///< a reader and a writer are not ordered
  write_after_read,
  write_after_write,
  across_iterations,  ///< one of these three, between an iteration and the next
  queue_capacity,     ///< a dynamic run has more events than its schedulers can watch
  co_residency,       ///< the device cannot run this many workers at the same time
  shared_memory,      ///< the tasks need more shared memory than a block has
  packet,             ///< the waits, signals and arguments of a task do not fit its packet
  tables_differ,      ///< the ranks declare different events, types or sizes
  undeclared_access,  ///< a task touches bytes that its regions do not declare
  between_hosts,      ///< a task needs more of a rank on another host than put and signal
};
/// Returns the fault in words: "cycle", "trigger count", ...
std::string name(GraphFault fault);

/// Thrown by compile() for a graph that cannot work. `witness` is the chain of facts that shows it,
/// one string per step; `fix` says what to change.
class InvalidGraph : public InvalidArgument {
 public:
  InvalidGraph(GraphFault fault, std::vector<std::string> witness, std::string fix);
  GraphFault fault;
  std::vector<std::string> witness;
  std::string fix;
};

/// Thrown when a wait of a task passes its deadline. facts.phase names the task and what it awaits;
/// facts.expected and facts.seen are the signals needed and received. `dump` gives the same for
/// every worker.
class TaskTimeout : public PeerTimeout {
 public:
  TaskTimeout(WaitFacts facts, std::string dump);
  std::string dump;
};

}  // namespace tokenyard::megakernel
