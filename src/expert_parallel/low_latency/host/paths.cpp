#include "expert_parallel/low_latency/host/paths.hpp"

#include <algorithm>

#include "fabric/agreement.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::low_latency {

namespace {

LowLatencyPath path_to(const World& world, uint32_t rank, LowLatencyPaths wanted) {
  if (!is_present(world, rank)) return LowLatencyPath::none;
  if (rank == world.rank()) return LowLatencyPath::self;
  const Network* const network = network_of(world);
  const bool put = network != nullptr && network->reaches(rank);
  if (wanted == LowLatencyPaths::put) return put ? LowLatencyPath::put : LowLatencyPath::none;
  if (world.topology().peers[rank].reach == Reach::load_store) return LowLatencyPath::load_store;
  return put ? LowLatencyPath::put : LowLatencyPath::none;
}

}  // namespace

Paths::Paths(const World& world, LowLatencyPaths wanted)
    : rank_(world.rank()), first_unreachable_(kAllReached) {
  for (uint32_t rank = 0; rank < world.size(); ++rank) {
    of_ranks_.push_back(path_to(world, rank, wanted));
    if (of_ranks_.back() == LowLatencyPath::none && is_present(world, rank))
      first_unreachable_ = std::min(first_unreachable_, rank);
  }
}

void Paths::learn(const std::vector<std::vector<bool>>& puts) {
  for (const std::vector<bool>& theirs : puts) {
    const auto count = [&](size_t end) {
      const auto first = theirs.begin();
      return static_cast<uint32_t>(std::count(
          first, first + static_cast<std::ptrdiff_t>(std::min(end, theirs.size())), true));
    };
    number_at_.push_back(count(rank_));
    most_put_peers_ = std::max(most_put_peers_, count(theirs.size()));
  }
}

std::vector<uint32_t> Paths::put_peers() const {
  std::vector<uint32_t> peers;
  for (uint32_t rank = 0; rank < of_ranks_.size(); ++rank)
    if (of_ranks_[rank] == LowLatencyPath::put) peers.push_back(rank);
  return peers;
}

}  // namespace tokenyard::low_latency
