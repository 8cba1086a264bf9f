#include "tokenyard/megakernel/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tokenyard::megakernel {

std::string name(GraphFault fault) {
  switch (fault) {
    case GraphFault::cycle:
      return "cycle";
    case GraphFault::trigger_count:
      return "trigger count";
    case GraphFault::runs_ahead:
      return "runs ahead";
    case GraphFault::unreachable:
      return "unreachable";
    case GraphFault::no_producer:
      return "no producer";
    case GraphFault::read_after_write:
      return "read after write";
    case GraphFault::write_after_read:
      return "write after read";
    case GraphFault::write_after_write:
      return "write after write";
    case GraphFault::across_iterations:
      return "across iterations";
    case GraphFault::queue_capacity:
      return "queue capacity";
    case GraphFault::co_residency:
      return "co-residency";
    case GraphFault::shared_memory:
      return "shared memory";
    case GraphFault::packet:
      return "packet";
    case GraphFault::tables_differ:
      return "tables differ";
    case GraphFault::undeclared_access:
      return "undeclared access";
    case GraphFault::between_hosts:
      return "between hosts";
  }
  return "unknown";
}

InvalidGraph::InvalidGraph(GraphFault fault, std::vector<std::string> witness, std::string fix)
    : InvalidArgument("graph", fix, fmt::format("{}: {}", name(fault), fmt::join(witness, " -> "))),
      fault(fault),
      witness(std::move(witness)),
      fix(std::move(fix)) {}

TaskTimeout::TaskTimeout(WaitFacts facts, std::string dump)
    : PeerTimeout(std::move(facts)), dump(std::move(dump)) {}

}  // namespace tokenyard::megakernel
