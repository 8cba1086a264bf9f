#include "fabric/host_map.hpp"

#include <algorithm>

#include "fabric/world_access.hpp"

namespace tokenyard {

HostMap::HostMap(std::vector<uint32_t> of, const std::vector<uint32_t>& absent)
    : host_of(std::move(of)), place_of(host_of.size(), kAbsent) {
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if (std::ranges::binary_search(absent, rank)) {
      host_of[rank] = 0;  // The world knows none.
      continue;
    }
    if (host_of[rank] >= members.size()) members.resize(host_of[rank] + 1);
    place_of[rank] = size_of(host_of[rank]);
    members[host_of[rank]].push_back(rank);
  }
}

std::vector<uint32_t> HostMap::peers_of(uint32_t rank) const {
  std::vector<uint32_t> peers;
  for (uint32_t peer = 0; peer < ranks(); ++peer)
    if (is_linked(peer, rank)) peers.push_back(peer);
  return peers;
}

uint32_t HostMap::locals_max() const {
  uint32_t most = 0;
  for (uint32_t host = 0; host < hosts(); ++host) most = std::max(most, size_of(host));
  return most;
}

uint32_t HostMap::links_max() const {
  size_t most = 0;
  for (uint32_t rank = 0; rank < ranks(); ++rank) most = std::max(most, peers_of(rank).size());
  return static_cast<uint32_t>(most);
}

HostMap host_map_of(const World& world) {
  std::vector<uint32_t> absent;
  for (uint32_t rank = 0; rank < world.size(); ++rank)
    if (!is_present(world, rank)) absent.push_back(rank);
  return HostMap(world.topology().host_of, absent);
}

}  // namespace tokenyard
