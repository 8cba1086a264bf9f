/// Ranks each on a host of its own: nobody's memory is mapped by another rank. For networks between
/// threads or processes of one machine.
#pragma once

#include <memory>
#include <vector>

#include "base/mapping.hpp"
#include "fabric/fabric.hpp"

namespace tokenyard::testing {

class ApartFabric : public Fabric {
 public:
  std::string name() const override { return "host"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint) override {
    std::vector<uint32_t> host_of;
    uint32_t next = 0;
    for (const uint32_t slot : bootstrap.membership().slots)
      host_of.push_back(slot == kAbsent ? kNoHost : next++);
    return host_of;
  }
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint) override {
    auto mapping = std::make_shared<Mapping>(Mapping::anonymous(request.arena_bytes));
    Ground ground;
    for (uint32_t rank = 0; rank < bootstrap.size(); ++rank) {
      const bool mine = rank == bootstrap.rank();
      ground.region.bases.push_back(mine ? mapping->base() : nullptr);
      PeerReach reach{.reach = Reach::put_signal, .how = "proxy/tcp", .why_not = "another host"};
      if (mine) reach = {.reach = Reach::self, .how = "itself", .why_not = ""};
      ground.peers.push_back(bootstrap.present(rank) ? reach : absent_peer());
    }
    ground.region.base = mapping->base();
    ground.region.bytes = request.arena_bytes;
    ground.region.rank = bootstrap.rank();
    ground.region.memory = std::move(mapping);
    return ground;
  }
};

}  // namespace tokenyard::testing
