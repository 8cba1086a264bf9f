/// What a graph, and a run of it, can have wrong.
#pragma once

#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

enum class GraphFault : uint8_t {
  cycle,             ///< tasks wait for one another, by events or by the order of a queue
  trigger_count,     ///< an event gets another number of signals than declared
  runs_ahead,        ///< signals of one iteration may be taken for the one before
  unreachable,       ///< a task awaits what nobody signals
  no_producer,       ///< a region is read that nobody has written before
  read_after_write,  ///< a reader is not ordered after, or before, a writer
  write_after_read,
  write_after_write,
  across_iterations,  ///< the same three, between an iteration and the next
  queue_capacity,     ///< a dynamic run has more events than its schedulers look out for
  co_residency,       ///< more workers than can run at once
  shared_memory,      ///< tasks want more than a block has
  packet,             ///< one task has more waits, signals and arguments than fit its packet
  tables_differ,      ///< ranks declare different events, types or sizes
  undeclared_access,  ///< arguments of a task touch bytes that its regions do not declare
};
/// "cycle", "trigger count", ...
std::string name(GraphFault fault);

/// compile() found that a graph cannot work. The witness leads there, a step a string.
class InvalidGraph : public InvalidArgument {
 public:
  InvalidGraph(GraphFault fault, std::vector<std::string> witness, std::string fix);
  GraphFault fault;
  std::vector<std::string> witness;
  std::string fix;
};

/// A task could not go on before its deadline: facts.phase names it and what it awaits,
/// facts.expected and facts.seen are how much of it. `dump` says the same of every worker.
class TaskTimeout : public PeerTimeout {
 public:
  TaskTimeout(WaitFacts facts, std::string dump);
  std::string dump;
};

}  // namespace tokenyard::megakernel
