#include "tokenyard/error.hpp"

#include <fmt/format.h>

namespace tokenyard {

namespace {

std::string sentence(const char* what, const WaitFacts& facts) {
  return fmt::format("rank {} {} in phase \"{}\": expected {}, seen {}, after {:.3f} s", facts.rank,
                     what, facts.phase, facts.expected, facts.seen, facts.waited_s);
}

std::string ranks_text(const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) return "no rank";
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string of_rank(const std::optional<uint32_t>& rank) {
  return rank ? fmt::format(" on rank {}", *rank) : "";
}

}  // namespace

InvalidArgument::InvalidArgument(std::string argument, std::string expected, std::string seen,
                                 std::optional<uint32_t> rank)
    : Error(fmt::format("{}{}: expected {}, got {}", argument, of_rank(rank), expected, seen)),
      argument(std::move(argument)),
      expected(std::move(expected)),
      seen(std::move(seen)),
      rank(rank) {}

PeerTimeout::PeerTimeout(WaitFacts facts)
    : Error(sentence("did not answer", facts)), facts(std::move(facts)) {}

PeerLost::PeerLost(WaitFacts facts) : Error(sentence("is gone", facts)), facts(std::move(facts)) {}

Cancelled::Cancelled(const std::string& phase)
    : Error(fmt::format("cancelled in phase \"{}\"", phase)), phase(phase) {}

OperationAborted::OperationAborted(std::string operation, uint64_t sequence, uint64_t epoch,
                                   std::vector<uint32_t> lost)
    : Error(fmt::format("{} {} was aborted in epoch {} and has not happened on any rank: lost {}",
                        operation, sequence, epoch, ranks_text(lost))),
      operation(std::move(operation)),
      sequence(sequence),
      epoch(epoch),
      lost(std::move(lost)) {}

QuorumLost::QuorumLost(std::vector<uint32_t> answering, uint32_t needed)
    : Error(fmt::format("too few ranks answer to go on: {}, and it takes {}", ranks_text(answering),
                        needed)),
      answering(std::move(answering)),
      needed(needed) {}

Fenced::Fenced(uint64_t epoch, const std::string& why)
    : Error(
          fmt::format("the others have gone on without this rank since epoch {}: {}", epoch, why)),
      epoch(epoch) {}

Unsupported::Unsupported(std::string what, std::string why)
    : Error(fmt::format("{} is not supported here: {}", what, why)),
      what_asked(std::move(what)),
      why(std::move(why)) {}

OsError::OsError(std::string call, int code, std::string text)
    : Error(fmt::format("{} failed with {}: {}", call, code, text)),
      call(std::move(call)),
      code(code) {}

}  // namespace tokenyard
