/// Ranks on GPUs: those of one domain reach one another's memory by loads and stores, those of
/// several by put and signal. A domain is a host, or the GPUs of one NVLink network over several
/// (GB200 NVL72), and then counts as a host.
///
///     1. Every rank allocates physical memory, then publishes its GPU, the size of the memory and,
///        if it failed, the reason. If one rank failed, all throw the same error.
///     2. Between processes, the memory is exported as a file descriptor and passed on, or where
///        both ranks' GPUs export to the NVLink network, as a fabric handle that ranks tell one
///        another. Each rank maps the memory of each peer once for its own GPU. A mapping that
///        fails is no error here: the topology gives the reason, and callers that need the peer
///        refuse to run.
///     3. Within a process, each rank maps its memory for all GPUs that reach it and shares the
///        mapping. There may be several simulated hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "fabric/fabric.hpp"

namespace tokenyard::nvlink {

class NvlinkFabric final : public Fabric {
 public:
  /// See Whereabouts. Without a domain, ranks of one NVLink network are in one.
  explicit NvlinkFabric(std::string host_name = {}, std::string domain = {})
      : host_name_(std::move(host_name)), domain_(std::move(domain)) {}
  /// For ranks of one process, on so many simulated hosts of equal size.
  explicit NvlinkFabric(uint32_t hosts) : hosts_(hosts) {}

  std::string name() const override { return "nvlink"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  bool hosts_are_machines() const override { return hosts_are_machines_; }
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

 private:
  const std::string host_name_, domain_;
  std::optional<bool> can_export_;  ///< whether its GPU exports memory to an NVLink network
  std::string clique_;              ///< see clique_of
  bool exports_to_fabric_ = false;  ///< it can, and this rank is in a domain
  bool hosts_are_machines_ = true;
  std::vector<uint32_t> machine_of_;  ///< [ranks] empty: all are on one
  const uint32_t hosts_ = 1;          ///< simulated; of use in one process only
};

}  // namespace tokenyard::nvlink
