/// Ranks of one process: each reaches every region at the same address. With several simulated
/// hosts, ranks of different hosts do not access each other's memory directly; only the card of the
/// simulated network (network/) does.
#pragma once

#include <functional>

#include "fabric/fabric.hpp"

namespace tokenyard {

/// Returns the simulated host of every rank, [ranks], where all hosts have equally many slots.
/// Throws InvalidArgument if that cannot be.
std::vector<uint32_t> hosts_of_equal_size(const Bootstrap& bootstrap, uint32_t hosts);

class InProcessFabric final : public Fabric {
 public:
  /// Returns memory for one rank's arena, aligned to 256 bytes. The simulator passes a function
  /// whose memory it watches.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;

  explicit InProcessFabric(uint32_t hosts, Allocate allocate = fresh_memory);
  /// `host_of`: [slots] host of each slot, counted from 0, so that hosts may differ in size.
  explicit InProcessFabric(std::vector<uint32_t> host_of, Allocate allocate = fresh_memory);

  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  /// Throws OsError, on every rank, naming a rank for which the system has no memory.
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

  static std::shared_ptr<std::byte> fresh_memory(size_t bytes);

 private:
  uint32_t hosts_ = 0;
  std::vector<uint32_t> host_of_;  ///< [slots]; empty: `hosts_` of one size
  Allocate allocate_;
};

}  // namespace tokenyard
