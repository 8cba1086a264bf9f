/// Ranks that are processes, of one host or several. A rank's arena is a memfd that every rank of
/// its host maps: it has no name, so it disappears with the last process that maps it, however that
/// process ends. Ranks of other hosts have put/signal reach.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "fabric/fabric.hpp"

namespace tokenyard {

class ProcessFabric final : public Fabric {
 public:
  /// `host_name`: see hosts_by_name.
  explicit ProcessFabric(std::string host_name = {}) : host_name_(std::move(host_name)) {}

  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  /// Throws OsError, on every rank, naming a rank for which the system has no memory.
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

 private:
  const std::string host_name_;
};

/// Why a rank of another host has no load/store reach.
inline constexpr const char* kOnAnotherHost =
    "it is on another host, whose memory cannot be mapped here";

/// Throws OsError if this system does not let processes share memory as ProcessFabric does.
void check_shared_memory();

/// Collective. Returns the host number of every rank; ranks share a number if they brought equal
/// names, or none and their boot ids and network namespaces are equal. Throws, on every rank,
/// OsError naming a rank that cannot read its boot id, and InvalidArgument naming a rank that
/// brought the name of a rank on another machine.
std::vector<uint32_t> hosts_by_name(Bootstrap& bootstrap, const std::string& host_name,
                                    const std::string& what, TimePoint until);
/// Returns the first rank that is not on the host of the ranks before it, if there is one.
std::optional<uint32_t> first_on_another_host(const std::vector<uint32_t>& host_of);

}  // namespace tokenyard
