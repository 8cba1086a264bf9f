/// Ranks of one process: every rank reaches every region at the same address. With more than one
/// simulated host, ranks of different hosts keep off each other's memory; only the card of a
/// simulated network (network/) reaches across.
#pragma once

#include <functional>

#include "fabric/fabric.hpp"

namespace tokenyard {

class InProcessFabric final : public Fabric {
 public:
  /// Memory for one rank's arena, 256-byte aligned. The simulator brings its own, which it watches.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;

  explicit InProcessFabric(uint32_t hosts, Allocate allocate = fresh_memory);

  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  /// Throws OsError, on every rank, naming one for which the system has no memory.
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

  static std::shared_ptr<std::byte> fresh_memory(size_t bytes);

 private:
  uint32_t hosts_;
  Allocate allocate_;
};

}  // namespace tokenyard
