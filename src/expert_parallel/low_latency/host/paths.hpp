/// How each rank reaches each other one in calls of a LowLatency object.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenyard/low_latency.hpp"

namespace tokenyard::low_latency {

class Paths {
 public:
  /// Chooses this rank's own paths. Those of others are not known yet.
  Paths(const World& world, LowLatencyPaths wanted);
  /// Returns the first present rank that cannot be reached as wanted, or kAllReached.
  uint32_t first_unreachable() const { return first_unreachable_; }
  /// Learns the paths of all ranks. `puts`: [ranks][ranks] whether one reaches the other by put.
  void learn(const std::vector<std::vector<bool>>& puts);

  const std::vector<LowLatencyPath>& of_ranks() const { return of_ranks_; }
  /// Returns the ranks that this one reaches by put, ascending.
  std::vector<uint32_t> put_peers() const;
  /// Returns the number of this rank among the put peers of another.
  uint32_t number_at(uint32_t rank) const { return number_at_[rank]; }
  /// Returns the put peers of the rank that has most: 0 if all paths are loads and stores.
  uint32_t most_put_peers() const { return most_put_peers_; }

 private:
  std::vector<LowLatencyPath> of_ranks_;
  uint32_t rank_, first_unreachable_;
  std::vector<uint32_t> number_at_;
  uint32_t most_put_peers_ = 0;
};

}  // namespace tokenyard::low_latency
