/// The errors of a graph and of its runs.
#pragma once

#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

enum class GraphFault : uint8_t {
  cycle,             ///< tasks wait for one another, by events or by the order of a queue
  trigger_count,     ///< the number of an event's signals differs from its declaration
  runs_ahead,        ///< signals of one iteration may count for the previous one
  unreachable,       ///< a task awaits an event that no task signals
  no_producer,       ///< a task reads a region that no task has written
  read_after_write,  ///< a reader is not ordered after, or before, a writer
  write_after_read,
  write_after_write,
  across_iterations,  ///< the same three, between an iteration and the next
  queue_capacity,     ///< a dynamic run has more events than its schedulers look out for
  co_residency,       ///< more workers than can run at once
  shared_memory,      ///< tasks need more than a block has
  packet,             ///< one task has more waits, signals and arguments than fit its packet
  tables_differ,      ///< ranks declare different events, types or sizes
  undeclared_access,  ///< arguments of a task touch bytes that its regions do not declare
};
/// "cycle", "trigger count", ...
std::string name(GraphFault fault);

/// Thrown by compile() for a graph that cannot work. The witness leads there, one step per string.
class InvalidGraph : public InvalidArgument {
 public:
  InvalidGraph(GraphFault fault, std::vector<std::string> witness, std::string fix);
  GraphFault fault;
  std::vector<std::string> witness;
  std::string fix;
};

/// A task could not go on before its deadline: facts.phase names it and what it awaits,
/// facts.expected and facts.seen count it. `dump` has the same facts for every worker.
class TaskTimeout : public PeerTimeout {
 public:
  TaskTimeout(WaitFacts facts, std::string dump);
  std::string dump;
};

}  // namespace tokenyard::megakernel
