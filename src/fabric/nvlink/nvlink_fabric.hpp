/// Ranks on GPUs: those of one host reach one another's memory by loads and stores, those of
/// several hosts by put and signal.
///
///     1. Every rank allocates physical memory, then publishes its GPU, the size of the memory and,
///        if it failed, the reason. If one rank failed, all throw the same error.
///     2. Between processes, the memory is exported as a file descriptor and passed on, and each
///        rank maps the memory of each peer of its host once for its own GPU. A mapping that fails
///        is no error here: the topology gives the reason, and callers that need the peer refuse to
///        run.
///     3. Within a process, each rank maps its memory for all GPUs that reach it and shares the
///        mapping. There may be several simulated hosts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "fabric/fabric.hpp"

namespace tokenyard::nvlink {

class NvlinkFabric final : public Fabric {
 public:
  /// `host_name`: see hosts_by_name.
  explicit NvlinkFabric(std::string host_name = {}) : host_name_(std::move(host_name)) {}
  /// For ranks of one process, on so many simulated hosts of equal size.
  explicit NvlinkFabric(uint32_t hosts) : hosts_(hosts) {}

  std::string name() const override { return "nvlink"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

 private:
  const std::string host_name_;
  const uint32_t hosts_ = 1;  ///< simulated; of use in one process only
};

}  // namespace tokenyard::nvlink
