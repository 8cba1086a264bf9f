/// A Megakernel's memory for its network block: what it works off, and where far ranks put.
#pragma once

#include <memory>
#include <vector>

#include "device/device_memory.hpp"
#include "fabric/network/claimed_queues.hpp"
#include "fabric/network/network_memory.hpp"
#include "megakernel/kernels/run_params.hpp"
#include "megakernel/network_plan.hpp"
#include "tokenyard/megakernel/graph.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

/// Returns the puts that carry a region of a far rank from its mirror. Throws InvalidGraph
/// (between_hosts) if the tensor has no mirror there.
std::vector<FarPut> puts_of(World& world, const Graph& graph, const Region& region);

class NetworkTables {
 public:
  /// Collective. Throws Unsupported, on all ranks alike, if a queue is missing.
  NetworkTables(World& world, const Graph& graph, const NetworkPlan& plan, const FarRanks& far);
  /// Peers signal no more, unless `quarantine` was called.
  ~NetworkTables();
  NetworkTables(const NetworkTables&) = delete;
  NetworkTables& operator=(const NetworkTables&) = delete;

  void describe(RunParams& params) const;
  /// Waits until all that this rank has sent has landed. Throws PeerTimeout.
  void drain() const;
  /// Keeps the landing from reuse: late signals may reach it.
  void quarantine() { quarantined_ = true; }

 private:
  template <class T>
  T* place(const std::vector<T>& values);
  void introduce(const Graph& graph, const NetworkPlan& plan, const FarRanks& far);

  World& world_;
  const LandingLayout layout_;
  NetworkMemory landing_;
  ClaimedQueues queue_;
  std::vector<std::unique_ptr<DeviceMemory>> tables_;
  NetworkBlockParams params_{};
  bool quarantined_ = false;
};

}  // namespace tokenyard::megakernel
