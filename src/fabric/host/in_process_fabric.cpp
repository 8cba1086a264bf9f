#include "fabric/host/in_process_fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mapping.hpp"
#include "fabric/collective_step.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

InProcessFabric::InProcessFabric(uint32_t hosts, Allocate allocate)
    : hosts_(hosts), allocate_(std::move(allocate)) {}

InProcessFabric::InProcessFabric(std::vector<uint32_t> host_of, Allocate allocate)
    : host_of_(std::move(host_of)), allocate_(std::move(allocate)) {}

std::vector<uint32_t> hosts_of_equal_size(const Bootstrap& bootstrap, uint32_t hosts) {
  // By slot, so that survivors of a rebuild keep their host.
  const uint32_t slots = bootstrap.mesh()->slots();
  if (hosts == 0 || slots % hosts != 0) {
    throw InvalidArgument("hosts", fmt::format("a divisor of the {} ranks", slots),
                          fmt::format("{}", hosts));
  }
  std::vector<uint32_t> host_of;
  for (const uint32_t slot : bootstrap.membership().slots) {
    host_of.push_back(slot == kAbsent ? kNoHost : slot / (slots / hosts));
  }
  return host_of;
}

std::vector<uint32_t> InProcessFabric::hosts(Bootstrap& bootstrap, TimePoint) {
  if (host_of_.empty()) return hosts_of_equal_size(bootstrap, hosts_);
  std::vector<uint32_t> host_of;
  for (const uint32_t slot : bootstrap.membership().slots)
    host_of.push_back(slot == kAbsent ? kNoHost : host_of_.at(slot));
  return host_of;
}

Ground InProcessFabric::prepare(Bootstrap& bootstrap, const FabricRequest& request,
                                TimePoint until) {
  using Memory = std::shared_ptr<std::byte>;
  auto mine = std::make_shared<Memory>();
  collective_step(bootstrap, "memory of arenas", until,
                  [&] { *mine = allocate_(request.arena_bytes); });
  const auto everybodys = bootstrap.share(mine, "arenas", until);

  Ground ground;
  auto kept = std::make_shared<std::vector<Memory>>();
  for (uint32_t rank = 0; rank < everybodys.size(); ++rank) {
    if (!bootstrap.present(rank)) {
      ground.region.bases.push_back(nullptr);
      ground.far_arenas.push_back(nullptr);
      ground.peers.push_back(absent_peer());
      continue;
    }
    const Memory& memory = *std::static_pointer_cast<Memory>(everybodys[rank]);
    const bool near = request.host_of[rank] == request.host_of[bootstrap.rank()];
    ground.region.bases.push_back(near ? memory.get() : nullptr);
    kept->push_back(memory);
    ground.far_arenas.push_back(near ? nullptr : memory.get());
    PeerReach reach{.reach = Reach::load_store, .how = "same process", .why_not = ""};
    if (rank == bootstrap.rank()) reach = {.reach = Reach::self, .how = "itself", .why_not = ""};
    if (!near) {
      reach = {.reach = Reach::put_signal,
               .how = "simulated network",
               .why_not = fmt::format("on simulated host {}", request.host_of[rank])};
    }
    ground.peers.push_back(std::move(reach));
  }
  const auto& far = ground.far_arenas;
  const auto none = [](const std::byte* arena) { return arena == nullptr; };
  if (std::all_of(far.begin(), far.end(), none)) ground.far_arenas.clear();
  ground.region.memory = std::move(kept);
  ground.region.base = mine->get();
  ground.region.bytes = request.arena_bytes;
  ground.region.rank = bootstrap.rank();
  return ground;
}

std::shared_ptr<std::byte> InProcessFabric::fresh_memory(size_t bytes) {
  auto mapping = std::make_shared<Mapping>(Mapping::anonymous(bytes));
  return {mapping, mapping->base()};
}

}  // namespace tokenyard
