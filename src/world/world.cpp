#include "tokenyard/world.hpp"

#include <utility>

#include "fabric/region_arena.hpp"
#include "world/parts.hpp"

namespace tokenyard {

namespace {

/// Checks options before the first side effect, alike on all ranks.
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
  auto impl = std::make_unique<World::Impl>();
  impl->options = options;
  impl->accelerator = std::move(accelerator);
  impl->fabric = std::move(fabric);
  impl->absences = std::move(absences);
  impl->abort_flag = std::make_unique<AbortFlag>(*impl->accelerator,
                                                 static_cast<uint32_t>(membership.slots.size()),
                                                 options.timeout, impl->absences);
  impl->bootstrap = std::make_unique<Bootstrap>(std::move(mesh), membership, *impl->accelerator,
                                                *impl->abort_flag);

  Bootstrap& bootstrap = *impl->bootstrap;
  const TimePoint until = impl->accelerator->now() + options.timeout;
  FabricRequest request{.arena_bytes = options.arena_bytes,
                        .host_of = impl->fabric->hosts(bootstrap, until),
                        .timeout = options.timeout};
  Ground ground = impl->fabric->prepare(bootstrap, request, until);
  impl->topology.host_of = std::move(request.host_of);
  for (const uint32_t host : impl->topology.host_of) {
    impl->topology.hosts = std::max(impl->topology.hosts, host + 1);
  }
  impl->topology.peers = std::move(ground.peers);
  impl->arena =
      std::make_unique<RegionArena>(impl->accelerator, std::move(ground.region), options.timeout);
  if (!ground.far_arenas.empty()) {
    if (!run_aside)
      throw InternalError("a world with far ranks has no run_aside to run its network card");
    impl->network = std::make_unique<Network>(
        *impl->accelerator, Network::Options{.arenas = ground.far_arenas, .seed = bootstrap.rank()},
        run_aside);
  }
  impl->run_aside = std::move(run_aside);
  // No rank may store into a region before its owner is ready for it.
  bootstrap.barrier("world is made", until);
  return std::make_unique<World>(std::move(impl));
}

}  // namespace

std::unique_ptr<World> join(std::shared_ptr<Mesh> mesh, std::shared_ptr<Accelerator> accelerator,
                            std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                            std::shared_ptr<const AbsenceWatch> absences, RunAside run_aside) {
  const Membership everybody = Membership::of(*mesh);
  return join_as(everybody, std::move(mesh), std::move(accelerator), std::move(fabric), options,
                 std::move(absences), std::move(run_aside));
}

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::~World() = default;

uint32_t World::rank() const {
  return impl_->bootstrap->rank();
}
uint32_t World::size() const {
  return impl_->bootstrap->size();
}
const Topology& World::topology() const {
  return impl_->topology;
}
std::chrono::nanoseconds World::timeout() const {
  return impl_->options.timeout;
}

std::vector<std::vector<std::byte>> World::all_gather(std::span<const std::byte> mine,
                                                      const std::string& what) {
  return impl_->bootstrap->all_gather(mine, what, impl_->accelerator->now() + timeout());
}

void World::barrier(const std::string& what) {
  impl_->bootstrap->barrier(what, impl_->accelerator->now() + timeout());
}

void World::cancel() {
  impl_->abort_flag->cancel();
}

std::function<void()> World::goodbye() const {
  const auto& mesh = impl_->bootstrap->mesh();
  if (!mesh->one_process()) throw Unsupported("goodbye", "processes send it when their worlds end");
  return [mesh = std::weak_ptr(mesh), accelerator = std::weak_ptr(impl_->accelerator)] {
    // Stores of running kernels must arrive before the goodbye, which ends the waits for them.
    if (const auto still = accelerator.lock()) still->drain();
    if (const auto still = mesh.lock()) still->leave();
  };
}

std::vector<uint32_t> World::lost() const {
  return impl_->abort_flag->gone_ranks();
}

std::unique_ptr<World> World::rebuild(const std::vector<uint32_t>& without, size_t arena_bytes) {
  const TimePoint until = impl_->accelerator->now() + timeout();
  const Membership next = impl_->bootstrap->agree_without(without, until);
  WorldOptions options = impl_->options;
  if (arena_bytes != 0) options.arena_bytes = arena_bytes;
  return join_as(next, impl_->bootstrap->mesh(), impl_->accelerator, impl_->fabric, options,
                 impl_->absences, impl_->run_aside);
}

Accelerator& World::accelerator() const {
  return *impl_->accelerator;
}
Arena& World::arena() const {
  return *impl_->arena;
}
AbortFlag& World::abort_flag() const {
  return *impl_->abort_flag;
}
Network* World::network() const {
  return impl_->network.get();
}

}  // namespace tokenyard
