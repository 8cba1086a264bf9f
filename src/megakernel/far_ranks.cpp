#include "megakernel/far_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fabric/agreement.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::megakernel {

FarRanks::FarRanks(World& world) {
  if (!spans_hosts(world)) return;
  std::vector<std::byte> mine;
  for (const PeerReach& peer : world.topology().peers)
    mine.push_back(static_cast<std::byte>(peer.reach));
  for (const auto& theirs : world.all_gather(mine, "megakernel: ranks of other hosts")) {
    std::vector<bool>& far = far_.emplace_back(world.size(), false);
    for (size_t rank = 0; rank < std::min(theirs.size(), far.size()); ++rank) {
      const auto reach = static_cast<Reach>(theirs[rank]);
      far[rank] = reach == Reach::put_signal;
      if (reach == Reach::none && is_present(world, static_cast<uint32_t>(rank)))
        throw Unsupported("a megakernel between hosts",
                          fmt::format("rank {} reaches rank {} in no way", far_.size() - 1, rank));
    }
  }
}

std::vector<uint32_t> FarRanks::of(uint32_t rank) const {
  std::vector<uint32_t> ranks;
  for (uint32_t other = 0; other < far_.size(); ++other)
    if (far_[rank][other]) ranks.push_back(other);
  return ranks;
}

bool FarRanks::has_near_peers(uint32_t rank) const {
  return any() && of(rank).size() + 1 < far_.size();
}

void require_network_reach(World& world, const FarRanks& far) {
  const uint32_t reaches = network_of(world)->reaches_arena() ? 1 : 0;
  const std::vector<uint32_t> all = gather(world, reaches, "megakernel: reach of networks");
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != 0 || !far.has_near_peers(rank)) continue;
    throw Unsupported(
        "a megakernel between hosts",
        fmt::format("the network of rank {} cannot put to memory that the other ranks of its host "
                    "reach: use one rank per host, or a network that reaches the GPU's memory",
                    rank));
  }
}

}  // namespace tokenyard::megakernel
