#include <fmt/format.h>

#include "tokenyard/world.hpp"

namespace tokenyard {

namespace {

const char* name_of(Reach reach) {
  switch (reach) {
    case Reach::none:
      return "none";
    case Reach::self:
      return "self";
    case Reach::load_store:
      return "load/store";
    case Reach::put_signal:
      return "put/signal";
  }
  return "?";
}

}  // namespace

std::string Topology::text() const {
  std::string table = fmt::format("{} rank(s) on {} host(s)\n", peers.size(), hosts);
  table += fmt::format("{:>4}  {:>4}  {:<10}  {}\n", "rank", "host", "reach", "how");
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    const PeerReach& peer = peers[rank];
    std::string how = peer.how;
    if (!peer.why_not.empty()) {
      how += fmt::format("{}no load/store: {}", how.empty() ? "" : "; ", peer.why_not);
    }
    const std::string host = host_of[rank] == kNoHost ? "-" : fmt::format("{}", host_of[rank]);
    table += fmt::format("{:>4}  {:>4}  {:<10}  {}\n", rank, host, name_of(peer.reach), how);
  }
  return table;
}

}  // namespace tokenyard
