/// Ranks that are processes, of one host or several. A rank's arena is a memfd that every rank of
/// its host maps: it has no name, so it disappears with the last process that maps it, however that
/// process ends. Ranks of other hosts have put/signal reach.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "fabric/fabric.hpp"

namespace tokenyard {

/// The marks of the place where a rank is.
struct Whereabouts {
  /// Empty: it is on the host of all ranks with its boot id and network namespace.
  std::string host_name = {};
  /// The domain whose ranks reach one another by load/store, and which then counts as a host. Empty
  /// or kOwnHost: its host.
  std::string domain = {};
};
inline constexpr const char* kOwnHost = "host";

class ProcessFabric final : public Fabric {
 public:
  /// See Whereabouts. The ranks of a domain must be on one machine.
  explicit ProcessFabric(std::string host_name = {}, std::string domain = {})
      : where_{.host_name = std::move(host_name), .domain = std::move(domain)} {}

  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  /// Throws OsError, on every rank, naming a rank for which the system has no memory.
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

 private:
  const Whereabouts where_;
};

/// Why a rank of another host has no load/store reach.
inline constexpr const char* kOnAnotherHost =
    "it is on another host, whose memory cannot be mapped here";

/// Throws OsError if this system does not let processes share memory as ProcessFabric does.
void check_shared_memory();

/// Where the ranks of a world are.
struct HostsFound {
  std::vector<uint32_t> host_of;     ///< [ranks] kNoHost: absent
  std::vector<uint32_t> machine_of;  ///< [ranks] likewise; descriptors pass within a machine alone
};

/// Collective. Returns the host number of every rank; ranks share a number if they brought equal
/// domains, or none and equal host names, or neither and their boot ids and network namespaces are
/// equal. Throws, on every rank, OsError naming a rank that cannot read its boot id, and
/// InvalidArgument naming a rank that brought the host name of a rank on another machine, or its
/// domain unless that `crosses_machines`.
HostsFound hosts_by_name(Bootstrap& bootstrap, const Whereabouts& where, const std::string& what,
                         TimePoint until, bool crosses_machines = false);
/// Returns the first rank that is not on the host of the ranks before it, if there is one.
std::optional<uint32_t> first_on_another_host(const std::vector<uint32_t>& host_of);

}  // namespace tokenyard
