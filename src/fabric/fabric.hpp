/// A way to reach peers' memory, one per folder: host/ (this process, or processes of this host),
/// nvlink/, network/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

struct FabricRequest {
  size_t arena_bytes = 0;
  std::vector<uint32_t> host_of;  ///< [ranks] host number of each rank, kNoHost if it is absent
  std::chrono::nanoseconds timeout{};
};

/// Returns how an absent rank is reached: not at all.
inline PeerReach absent_peer() {
  return {.reach = Reach::none, .how = "", .why_not = "its slot is empty"};
}

/// A rank's own region, and how it reaches its peers.
struct Ground {
  Region region;
  std::vector<PeerReach> peers;  ///< [ranks]
  /// [ranks] Arenas with put/signal reach, as this rank's network card addresses them; null for
  /// other ranks. Empty if there are none. `region.memory` keeps them alive too.
  std::vector<std::byte*> far_arenas;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::string name() const = 0;  ///< "host", "nvlink"
  /// Collective. Returns the host number of every rank, in rank order, counted from 0; kNoHost for
  /// an absent one.
  virtual std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) = 0;
  /// Returns whether descriptors pass between all ranks of one host, once `hosts` is known.
  virtual bool hosts_are_machines() const { return true; }
  /// Collective. Allocates this rank's region and maps its peers'; a failure on one rank fails on
  /// all. The memory is always new, so a late store into an older world's region is harmless.
  virtual Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) = 0;
};

}  // namespace tokenyard
