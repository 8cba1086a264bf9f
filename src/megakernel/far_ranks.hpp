/// Which ranks of a world cannot load and store one another's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

class FarRanks {
 public:
  /// Nobody is far from anybody.
  FarRanks() = default;
  /// Collective if some ranks are.
  explicit FarRanks(World& world);

  bool any() const { return !far_.empty(); }
  bool between(uint32_t rank, uint32_t other) const { return any() && far_[rank][other]; }
  /// Returns the ranks that are far from this one, ascending.
  std::vector<uint32_t> of(uint32_t rank) const;
  /// Returns whether a rank has a near peer.
  bool has_near_peers(uint32_t rank) const;

 private:
  std::vector<std::vector<bool>> far_;  ///< [ranks][ranks]
};

/// Collective. Throws Unsupported, on all ranks alike, if a rank's network cannot put to memory
/// that its near peers reach, as TCP cannot to a GPU's arena.
void require_network_reach(World& world, const FarRanks& far);

}  // namespace tokenyard::megakernel
