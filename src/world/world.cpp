#include "tokenyard/world.hpp"

#include <utility>

#include "fabric/region_arena.hpp"
#include "world/parts.hpp"

namespace tokenyard {

namespace {

/// Checked before the first side effect, alike on all ranks.
void check(const WorldOptions& options) {
  if (options.timeout <= std::chrono::nanoseconds::zero()) {
    throw InvalidArgument("timeout", "more than 0",
                          std::to_string(options.timeout.count()) + " ns");
  }
  if (options.arena_bytes < 4096) {
    throw InvalidArgument("arena_bytes", "at least 4096", std::to_string(options.arena_bytes));
  }
}

std::unique_ptr<World> join_as(const Membership& membership, std::shared_ptr<Mesh> mesh,
                               std::shared_ptr<Accelerator> accelerator,
                               std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                               std::shared_ptr<const AbsenceWatch> absences, RunAside run_aside) {
  check(options);
  auto parts = std::make_unique<World::Parts>();
  parts->options = options;
  parts->accelerator = std::move(accelerator);
  parts->fabric = std::move(fabric);
  parts->absences = std::move(absences);
  parts->alarm = std::make_unique<AlarmBell>(*parts->accelerator,
                                             static_cast<uint32_t>(membership.seats.size()),
                                             options.timeout, parts->absences);
  parts->bootstrap =
      std::make_unique<Bootstrap>(std::move(mesh), membership, *parts->accelerator, *parts->alarm);

  Bootstrap& bootstrap = *parts->bootstrap;
  const TimePoint until = parts->accelerator->now() + options.timeout;
  FabricRequest request{.arena_bytes = options.arena_bytes,
                        .host_of = parts->fabric->hosts(bootstrap, until),
                        .timeout = options.timeout};
  Ground ground = parts->fabric->prepare(bootstrap, request, until);
  parts->topology.host_of = std::move(request.host_of);
  for (const uint32_t host : parts->topology.host_of) {
    parts->topology.hosts = std::max(parts->topology.hosts, host + 1);
  }
  parts->topology.peers = std::move(ground.peers);
  parts->arena =
      std::make_unique<RegionArena>(parts->accelerator, std::move(ground.region), options.timeout);
  if (!ground.far_arenas.empty()) {
    if (!run_aside) throw InternalError("a world with far ranks has nothing to run its network");
    parts->network = std::make_unique<Network>(
        *parts->accelerator,
        Network::Options{.arenas = ground.far_arenas, .seed = bootstrap.rank()}, run_aside);
  }
  parts->run_aside = std::move(run_aside);
  // Nobody may store into a region before its owner is ready to be stored into.
  bootstrap.barrier("world is made", until);
  return std::make_unique<World>(std::move(parts));
}

}  // namespace

std::unique_ptr<World> join(std::shared_ptr<Mesh> mesh, std::shared_ptr<Accelerator> accelerator,
                            std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                            std::shared_ptr<const AbsenceWatch> absences, RunAside run_aside) {
  const Membership everybody = Membership::of(*mesh);
  return join_as(everybody, std::move(mesh), std::move(accelerator), std::move(fabric), options,
                 std::move(absences), std::move(run_aside));
}

World::World(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
World::~World() = default;

uint32_t World::rank() const {
  return parts_->bootstrap->rank();
}
uint32_t World::size() const {
  return parts_->bootstrap->size();
}
const Topology& World::topology() const {
  return parts_->topology;
}
std::chrono::nanoseconds World::timeout() const {
  return parts_->options.timeout;
}

std::vector<std::vector<std::byte>> World::all_gather(std::span<const std::byte> mine,
                                                      const std::string& what) {
  return parts_->bootstrap->all_gather(mine, what, parts_->accelerator->now() + timeout());
}

void World::barrier(const std::string& what) {
  parts_->bootstrap->barrier(what, parts_->accelerator->now() + timeout());
}

void World::cancel() {
  parts_->alarm->cancel();
}

std::function<void()> World::goodbye() const {
  const auto& mesh = parts_->bootstrap->mesh();
  if (!mesh->one_process()) throw Unsupported("goodbye", "a process says it when its worlds end");
  return [mesh = std::weak_ptr(mesh), accelerator = std::weak_ptr(parts_->accelerator)] {
    // What kernels still send must have come before the goodbye, which ends the waits for it.
    if (const auto still = accelerator.lock()) still->drain();
    if (const auto still = mesh.lock()) still->leave();
  };
}

std::vector<uint32_t> World::lost() const {
  return parts_->alarm->gone_ranks();
}

std::unique_ptr<World> World::rebuild(const std::vector<uint32_t>& without, size_t arena_bytes) {
  const TimePoint until = parts_->accelerator->now() + timeout();
  const Membership next = parts_->bootstrap->agree_without(without, until);
  WorldOptions options = parts_->options;
  if (arena_bytes != 0) options.arena_bytes = arena_bytes;
  return join_as(next, parts_->bootstrap->mesh(), parts_->accelerator, parts_->fabric, options,
                 parts_->absences, parts_->run_aside);
}

Accelerator& World::accelerator() const {
  return *parts_->accelerator;
}
Arena& World::arena() const {
  return *parts_->arena;
}
AlarmBell& World::alarm() const {
  return *parts_->alarm;
}
Network* World::network() const {
  return parts_->network.get();
}

}  // namespace tokenyard
