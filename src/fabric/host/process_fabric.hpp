/// Ranks that are processes of one host. A rank's arena is a memfd that every peer maps: it has no
/// name, so it disappears with the last process that maps it, however that process ends.
#pragma once

#include <optional>

#include "fabric/fabric.hpp"

namespace tokenyard {

class ProcessFabric final : public Fabric {
 public:
  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  /// Throws, on every rank, Unsupported if the ranks are on several hosts, and OsError naming a
  /// rank for which the system has no memory.
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;
};

/// Throws OsError if this system does not let processes share memory as ProcessFabric does.
void check_shared_memory();

/// Collective. Returns the host number of every rank; ranks share a number if their machine's boot
/// ids are equal. Throws OsError, on every rank, naming a rank that cannot read its boot id.
std::vector<uint32_t> hosts_by_boot(Bootstrap& bootstrap, const std::string& what, TimePoint until);
/// Returns the first rank that is not on the host of the ranks before it, if there is one.
std::optional<uint32_t> first_on_another_host(const std::vector<uint32_t>& host_of);

}  // namespace tokenyard
