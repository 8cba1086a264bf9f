#include "collectives/algorithms/hierarchy.hpp"

#include <cstring>
#include <utility>

namespace tokenyard::collectives {

namespace {

/// The leader of a host is its first rank; the root leads its own host.
struct Hosts {
  Team mine;     ///< ranks of this host
  Team leaders;  ///< `me` is valid on leaders only
  uint32_t leader = 0;

  Hosts(const Attempt& attempt, uint32_t root) {
    const auto host = [&](uint32_t rank) { return attempt.host_of[rank]; };
    const uint32_t self = attempt.talk.self();
    uint32_t last = ~0u;
    for (const uint32_t rank : attempt.team.ranks) {
      if (host(rank) != last) {
        const uint32_t leads = host(rank) == host(root) ? root : rank;
        if (host(rank) == host(self)) leader = leads;
        leaders.ranks.push_back(leads);
        last = host(rank);
      }
      if (host(rank) == host(self)) mine.ranks.push_back(rank);
    }
    mine.me = mine.place_of(self);
    leaders.me = leaders.place_of(self);
  }
  bool leads() const { return leaders.me < leaders.size(); }
};

}  // namespace

Task all_reduce_by_host(Attempt& attempt, Summands summands) {
  const Hosts hosts(attempt, attempt.team.ranks[0]);
  const size_t bytes = summands.elements * bytes_of(summands.type);
  Tree tree = binomial_tree(hosts.mine, hosts.leader);
  Task within = reduce_along(attempt, std::move(tree), summands);
  co_await within;
  if (hosts.leads()) {
    std::byte* other = attempt.undo.scratch(bytes);
    std::byte* result = nullptr;
    Task between = all_reduce_doubling(attempt, hosts.leaders, summands, other, &result);
    co_await between;
    if (result != summands.data && bytes > 0) {
      Sent sent = attempt.talk.sent();
      co_await sent;
      std::memcpy(summands.data, result, bytes);
    }
  }
  Tree back_tree = binomial_tree(hosts.mine, hosts.leader);
  const Array sums = {summands.data, summands.elements, summands.type};
  Task back = broadcast_along(attempt, std::move(back_tree), sums);
  co_await back;
}

Task reduce_by_host(Attempt& attempt, Summands summands, uint32_t root) {
  const Hosts hosts(attempt, root);
  Tree tree = binomial_tree(hosts.mine, hosts.leader);
  Task within = reduce_along(attempt, std::move(tree), summands);
  co_await within;
  if (!hosts.leads()) co_return;
  Tree between_tree = binomial_tree(hosts.leaders, root);
  Task between = reduce_along(attempt, std::move(between_tree), summands);
  co_await between;
}

Task broadcast_by_host(Attempt& attempt, Array array, uint32_t root) {
  const Hosts hosts(attempt, root);
  if (hosts.leads()) {
    Tree tree = binomial_tree(hosts.leaders, root);
    Task between = broadcast_along(attempt, std::move(tree), array);
    co_await between;
  }
  Tree tree = binomial_tree(hosts.mine, hosts.leader);
  Task within = broadcast_along(attempt, std::move(tree), array);
  co_await within;
}

}  // namespace tokenyard::collectives
