/// Which ranks share a host, and which ranks of different hosts share a link. Arithmetic on the
/// hosts of all ranks, so that every rank finds the same.
#pragma once

#include <cstdint>
#include <vector>

namespace tokenyard::internode {

struct HostMap {
  explicit HostMap(std::vector<uint32_t> host_of);

  uint32_t ranks() const { return static_cast<uint32_t>(host_of.size()); }
  uint32_t hosts() const { return static_cast<uint32_t>(members.size()); }
  uint32_t size_of(uint32_t host) const { return static_cast<uint32_t>(members[host].size()); }
  /// Returns the rank that forwards rows of `source` on a host: its rail peer.
  uint32_t forwarder(uint32_t source, uint32_t host) const {
    return members[host][place_of[source] % size_of(host)];
  }
  bool forwards(uint32_t rank, uint32_t source) const {
    return host_of[rank] != host_of[source] && forwarder(source, host_of[rank]) == rank;
  }
  /// Returns the ranks that share a link with `rank`, ascending.
  std::vector<uint32_t> peers_of(uint32_t rank) const;
  uint32_t locals_max() const;
  uint32_t links_max() const;

  std::vector<uint32_t> host_of;               ///< [ranks] counted from 0
  std::vector<uint32_t> place_of;              ///< [ranks] on their hosts
  std::vector<std::vector<uint32_t>> members;  ///< [hosts] ranks of each, ascending
};

}  // namespace tokenyard::internode
