#include "fabric/network_fault.hpp"

#include "fabric/abort_flag.hpp"
#include "fabric/bootstrap.hpp"

namespace tokenyard {

namespace {

const char* name(NetworkCheck check) {
  switch (check) {
    case NetworkCheck::none:
      break;
    case NetworkCheck::target_key:
      return "target key";
    case NetworkCheck::target_range:
      return "target range";
    case NetworkCheck::source_key:
      return "source key";
    case NetworkCheck::source_range:
      return "source range";
    case NetworkCheck::size:
      return "size";
    case NetworkCheck::alignment:
      return "alignment";
    case NetworkCheck::request:
      return "request";
    case NetworkCheck::target:
      return "target";
    case NetworkCheck::source:
      return "source";
    case NetworkCheck::queue:
      return "queue";
    case NetworkCheck::connection:
      return "connection";
  }
  return "?";
}

}  // namespace

NetworkFault network_fault(const NetworkFaultDetail& detail, uint32_t peer,
                           const std::string& phase, uint64_t expected, uint64_t seen) {
  return NetworkFault(NetworkFault::Facts{.rank = detail.rank,
                                          .peer = peer,
                                          .queue = detail.queue,
                                          .region = detail.region,
                                          .check = name(static_cast<NetworkCheck>(detail.check)),
                                          .phase = phase,
                                          .expected = expected,
                                          .seen = seen});
}

void check_refusals(Accelerator& accelerator, const std::vector<QueuePair*>& pairs,
                    const std::string& phase) {
  for (const QueuePair* const pair : pairs) {
    if (pair == nullptr) continue;
    const uint32_t refused = accelerator.read_flag(&pair->refused);
    if (refused == 0) continue;
    throw network_fault({.check = refused,
                         .rank = pair->rank,
                         .queue = pair->number,
                         .region = pair->refusal.region},
                        pair->peer, phase, pair->refusal.expected, pair->refusal.seen);
  }
}

void end_network(Bootstrap& bootstrap, AbortFlag& abort_flag, const std::vector<bool>& far,
                 const std::string& why) {
  const uint32_t rank = bootstrap.rank();
  NetworkFault::Facts facts{
      .rank = rank, .peer = rank, .check = "thread", .phase = {}, .cause = why};
  abort_flag.network_failed(facts);
  // Low latency waits for each rank by a word of its own: they end as after a loss of the ranks.
  for (facts.peer = 0; facts.peer < far.size(); ++facts.peer)
    if (far[facts.peer]) abort_flag.network_failed(facts);
  bootstrap.say_network_failed(why);
}

}  // namespace tokenyard
