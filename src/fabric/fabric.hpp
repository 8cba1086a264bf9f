/// A way to reach peers' memory. One folder each: host/ (this process, or processes of this host),
/// nvlink/, network/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/bootstrap.hpp"
#include "fabric/region_arena.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

struct FabricRequest {
  size_t arena_bytes = 0;
  std::vector<uint32_t> host_of;  ///< [ranks]
  std::chrono::nanoseconds timeout{};
};

/// What a rank stands on.
struct Ground {
  Region region;
  std::vector<PeerReach> peers;  ///< [ranks]
  /// [ranks] The arenas with put/signal reach, as a network card of this rank reaches them; null
  /// for the others. Empty if there are none. `region.memory` keeps them too.
  std::vector<std::byte*> far_arenas;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::string name() const = 0;  ///< "host", "nvlink"
  /// The host of every rank, in the order of ranks, numbered from 0. Collective.
  virtual std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) = 0;
  /// Makes this rank's region and maps those of its peers. Collective: what one rank cannot do
  /// fails on all. Always new memory, so that a late store into an older world's harms nobody.
  virtual Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) = 0;
};

}  // namespace tokenyard
