#include "tokenyard/error.hpp"

#include <fmt/chrono.h>
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

std::string out_of_touch(const WaitFacts& facts,
                         const std::optional<std::chrono::system_clock::time_point>& since,
                         double absent_s, bool left_out) {
  const std::string others =
      left_out
          ? fmt::format("rank {} has rebuilt the world without this rank", facts.rank)
          : fmt::format("its wait for rank {} failed, and the others may have continued without it",
                        facts.rank);
  const std::string when =
      since ? fmt::format(
                  "this rank was out of touch for {:.1f} s since {:%Y-%m-%d %H:%M:%S} UTC "
                  "(stopped, or without CPU): ",
                  absent_s, fmt::gmtime(std::chrono::system_clock::to_time_t(*since)))
            : "";
  return fmt::format("{}{}, in phase \"{}\"", when, others, facts.phase);
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

OutOfTouch::OutOfTouch(WaitFacts facts, std::optional<std::chrono::system_clock::time_point> since,
                       std::chrono::nanoseconds absent, bool left_out)
    : Error(out_of_touch(facts, since, std::chrono::duration<double>(absent).count(), left_out)),
      facts(std::move(facts)),
      since(since),
      absent_s(std::chrono::duration<double>(absent).count()),
      left_out(left_out) {}

Cancelled::Cancelled(const std::string& phase)
    : Error(fmt::format("cancelled in phase \"{}\"", phase)), phase(phase) {}

OperationAborted::OperationAborted(std::string operation, uint64_t sequence, uint64_t epoch,
                                   std::vector<uint32_t> lost)
    : Error(fmt::format("{} {} was aborted in epoch {} and took effect on no rank: lost {}",
                        operation, sequence, epoch, ranks_text(lost))),
      operation(std::move(operation)),
      sequence(sequence),
      epoch(epoch),
      lost(std::move(lost)) {}

QuorumLost::QuorumLost(std::vector<uint32_t> answering, uint32_t needed)
    : Error(fmt::format("too few ranks answer: {}, and {} ranks are needed", ranks_text(answering),
                        needed)),
      answering(std::move(answering)),
      needed(needed) {}

Fenced::Fenced(uint64_t epoch, const std::string& why)
    : Error(fmt::format("the others have continued without this rank since epoch {}: {}", epoch,
                        why)),
      epoch(epoch) {}

namespace {

std::string text_of(const NetworkFault::Facts& facts) {
  if (facts.check == "connection") {
    return fmt::format(
        "the network of rank {} does not reach rank {} in phase \"{}\": {}; {} requests of {} on "
        "queue {} were done; look at the link between the two hosts",
        facts.rank, facts.peer, facts.phase, facts.cause.empty() ? "it is broken" : facts.cause,
        facts.seen, facts.expected, facts.queue);
  }
  if (facts.check == "thread") {
    return fmt::format(
        "the network of rank {} has failed in phase \"{}\", so no other host reaches that rank: "
        "{}; "
        "make a new world, or replace the rank's process",
        facts.peer, facts.phase, facts.cause);
  }
  return fmt::format(
      "the network refused a request of rank {} to rank {} on queue {} in phase \"{}\": {} of "
      "region {}: expected {:#x}, seen {:#x}; post only keys and ranges that are registered",
      facts.rank, facts.peer, facts.queue, facts.phase, facts.check, facts.region, facts.expected,
      facts.seen);
}

}  // namespace

NetworkFault::NetworkFault(Facts facts) : Error(text_of(facts)), facts(std::move(facts)) {}

Unsupported::Unsupported(std::string what, std::string why)
    : Error(fmt::format("{} is not supported here: {}", what, why)),
      what_asked(std::move(what)),
      why(std::move(why)) {}

OsError::OsError(std::string call, int code, std::string text)
    : Error(fmt::format("{} failed with {}: {}", call, code, text)),
      call(std::move(call)),
      code(code) {}

}  // namespace tokenyard
