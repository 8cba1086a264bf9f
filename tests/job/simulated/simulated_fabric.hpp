/// Arenas in the simulator's memory, for ranks that send one another bytes and no objects.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/gather.hpp"
#include "job/simulated/computation.hpp"

namespace tokenyard::job_test {

class SimulatedFabric final : public Fabric {
 public:
  /// `reuses`: deliberately wrong: a process's next arena is the one before.
  SimulatedFabric(Computation& computation, bool reuses)
      : computation_(computation), reuses_(reuses) {}

  std::string name() const override { return "the simulator"; }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint) override {
    std::vector<uint32_t> hosts;
    for (const uint32_t slot : bootstrap.membership().slots)
      hosts.push_back(slot == kAbsent ? kNoHost : 0);
    return hosts;
  }
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override {
    const ProcessId self = computation_.simulation().executor().current_rank();
    std::byte* const mine = arena_of(self, request.arena_bytes);
    Ground ground;
    ground.region = {.memory = nullptr,
                     .base = mine,
                     .bytes = request.arena_bytes,
                     .bases = gather(bootstrap, mine, "arenas", until),
                     .rank = bootstrap.rank()};
    for (uint32_t rank = 0; rank < bootstrap.size(); ++rank) {
      const bool own = rank == bootstrap.rank();
      ground.peers.push_back(!bootstrap.present(rank)
                                 ? absent_peer()
                                 : PeerReach{.reach = own ? Reach::self : Reach::load_store,
                                             .how = "",
                                             .why_not = ""});
    }
    return ground;
  }

 private:
  /// Bytes of a NaN in every format.
  static constexpr auto kPoison = static_cast<std::byte>(0xff);

  /// It stays until the end: a process that is lost may store there whenever it wakes.
  std::byte* arena_of(ProcessId self, size_t bytes) {
    std::byte*& last = last_[self];
    if (reuses_ && last != nullptr) return last;
    last = computation_.simulation().allocate("arena", bytes, self);
    std::fill_n(last, bytes, kPoison);
    return last;
  }

  Computation& computation_;
  const bool reuses_;
  std::map<ProcessId, std::byte*> last_;
};

}  // namespace tokenyard::job_test
