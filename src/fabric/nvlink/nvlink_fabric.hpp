/// Ranks on GPUs of one host that reach one another's memory by loads and stores.
///
///     1. Every rank allocates physical memory, then publishes its GPU, the size of the memory and,
///        if it failed, the reason. If one rank failed, all throw the same error.
///     2. Between processes, the memory is exported as a file descriptor and passed on, and each
///        rank maps each peer's memory once for its own GPU. A mapping that fails is no error here:
///        the topology gives the reason, and callers that need the peer refuse to run.
///     3. Within a process, each rank maps its memory for all GPUs that reach it and shares the
///        mapping.
#pragma once

#include <string>
#include <utility>

#include "fabric/fabric.hpp"

namespace tokenyard::nvlink {

class NvlinkFabric final : public Fabric {
 public:
  /// `host_name`: see hosts_by_name.
  explicit NvlinkFabric(std::string host_name = {}) : host_name_(std::move(host_name)) {}

  std::string name() const override { return "nvlink"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;

 private:
  const std::string host_name_;
};

}  // namespace tokenyard::nvlink
