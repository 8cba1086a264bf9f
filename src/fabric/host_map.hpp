/// Which ranks share a host, and which ranks of different hosts share a link. Arithmetic on the
/// hosts of all ranks, so that every rank finds the same.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

struct HostMap {
  /// `absent`: ranks without a process, ascending. They have no place and forward nothing.
  explicit HostMap(std::vector<uint32_t> host_of, const std::vector<uint32_t>& absent = {});

  uint32_t ranks() const { return static_cast<uint32_t>(host_of.size()); }
  uint32_t hosts() const { return static_cast<uint32_t>(members.size()); }
  uint32_t size_of(uint32_t host) const { return static_cast<uint32_t>(members[host].size()); }
  bool is_absent(uint32_t rank) const { return place_of[rank] == kAbsent; }
  /// Returns the rank that forwards rows of `source` on a host with ranks: its rail peer.
  uint32_t forwarder(uint32_t source, uint32_t host) const {
    return members[host][place_of[source] % size_of(host)];
  }
  bool forwards(uint32_t rank, uint32_t source) const {
    if (is_absent(rank) || is_absent(source)) return false;
    return host_of[rank] != host_of[source] && forwarder(source, host_of[rank]) == rank;
  }
  /// Returns whether rows go between two ranks of different hosts.
  bool is_linked(uint32_t rank, uint32_t other) const {
    return forwards(rank, other) || forwards(other, rank);
  }
  /// Returns the ranks that share a link with `rank`, ascending.
  std::vector<uint32_t> peers_of(uint32_t rank) const;
  uint32_t locals_max() const;
  uint32_t links_max() const;

  std::vector<uint32_t> host_of;  ///< [ranks] counted from 0
  static constexpr uint32_t kAbsent = UINT32_MAX;
  std::vector<uint32_t> place_of;              ///< [ranks] on their hosts, or kAbsent
  std::vector<std::vector<uint32_t>> members;  ///< [hosts] ranks of each, ascending
};

/// Returns that of a world's present ranks.
HostMap host_map_of(const World& world);

}  // namespace tokenyard
