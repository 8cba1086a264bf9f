/// Ranks that are processes of one host. A rank's arena is a memfd that every peer maps: it has no
/// name, so nothing is left of it when the last process that maps it is gone, however it went.
#pragma once

#include "fabric/fabric.hpp"

namespace tokenyard {

class ProcessFabric final : public Fabric {
 public:
  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  /// Throws Unsupported, on every rank, if the ranks are not all on one host, and OsError naming a
  /// rank for which the system has no memory.
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;
};

/// Throws OsError if this system does not let processes share memory as ProcessFabric does.
void check_shared_memory();

/// For every rank the number of its host; ranks of one boot of one machine share a number.
/// Collective. Throws OsError, on every rank, naming one that cannot tell its boot.
std::vector<uint32_t> hosts_by_boot(Bootstrap& bootstrap, const std::string& what, TimePoint until);

}  // namespace tokenyard
