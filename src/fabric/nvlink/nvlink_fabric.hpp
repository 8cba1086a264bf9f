/// Ranks on GPUs of one host that reach one another's memory by loads and stores.
///
///     1. Every rank says which GPU it has, how large its arena is, and what is wrong, if anything
///        is; if something is, all ranks throw the same.
///     2. Every rank makes physical memory. Between processes it is exported as a file descriptor
///        and passed along; inside a process the mapping itself is shared.
///     3. Every rank maps each peer's memory, once, for its own GPU. What cannot be mapped is no
///        error here: the topology says why, and who needs the peer refuses.
#pragma once

#include "fabric/fabric.hpp"

namespace tokenyard::nvlink {

class NvlinkFabric final : public Fabric {
 public:
  std::string name() const override { return "nvlink"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override;
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override;
};

}  // namespace tokenyard::nvlink
