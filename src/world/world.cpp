#include "tokenyard/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "device/joint_launches.hpp"
#include "fabric/arena.hpp"
#include "fabric/on_failure.hpp"
#include "fabric/replacement.hpp"
#include "fabric/world_access.hpp"
#include "job/job_state.hpp"
#include "tokenyard/job.hpp"
#include "world/job_world.hpp"
#include "world/parts.hpp"

namespace tokenyard {

void check_options(const WorldOptions& options) {
  if (options.timeout <= std::chrono::nanoseconds::zero()) {
    throw InvalidArgument("timeout", "more than 0",
                          std::to_string(options.timeout.count()) + " ns");
  }
  if (options.arena_bytes < 4096) {
    throw InvalidArgument("arena_bytes", "at least 4096", std::to_string(options.arena_bytes));
  }
}

std::unique_ptr<World> join(const Membership& ranks, std::shared_ptr<Mesh> mesh,
                            std::shared_ptr<Accelerator> accelerator,
                            std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                            std::shared_ptr<const AbsenceWatch> absences, SimulatedCard card,
                            MakeNetwork network, Inheritance inherited) {
  check_options(options);
  auto impl = std::make_unique<WorldAccess::Impl>();
  impl->options = options;
  impl->accelerator = std::move(accelerator);
  impl->fabric = std::move(fabric);
  impl->absences = std::move(absences);
  impl->abort_flag =
      std::make_unique<AbortFlag>(*impl->accelerator, static_cast<uint32_t>(ranks.slots.size()),
                                  options.timeout, impl->absences);
  impl->job = std::move(inherited.job);
  impl->processes = std::dynamic_pointer_cast<ProcessRanks>(mesh);
  impl->epoch = inherited.members.epoch;
  impl->members = std::move(inherited.members);
  impl->left_out = std::move(inherited.left_out);
  impl->follows_job = inherited.follows_job;
  impl->mutant = inherited.mutant;
  impl->bootstrap =
      std::make_unique<Bootstrap>(std::move(mesh), ranks, *impl->accelerator, *impl->abort_flag);

  Bootstrap& bootstrap = *impl->bootstrap;
  bootstrap.check_while_waiting(std::move(inherited.check_while_made));
  const TimePoint until = impl->accelerator->now() + options.timeout;
  FabricRequest request{.arena_bytes = options.arena_bytes,
                        .host_of = impl->fabric->hosts(bootstrap, until),
                        .timeout = options.timeout};
  Ground ground = impl->fabric->prepare(bootstrap, request, until);
  impl->topology.host_of = std::move(request.host_of);
  for (const uint32_t host : impl->topology.host_of) {
    if (host != kNoHost) impl->topology.hosts = std::max(impl->topology.hosts, host + 1);
  }
  impl->topology.peers = std::move(ground.peers);
  impl->arena =
      std::make_unique<Arena>(impl->accelerator, std::move(ground.region), options.timeout);
  std::vector<bool> far;
  for (const PeerReach& peer : impl->topology.peers)
    far.push_back(peer.reach == Reach::put_signal ||
                  (card.within_hosts && peer.reach == Reach::load_store));
  const bool any_far = std::ranges::find(far, true) != far.end();
  if (any_far && network) {
    impl->network = network({.bootstrap = bootstrap,
                             .abort_flag = *impl->abort_flag,
                             .arena = *impl->arena,
                             .far = std::move(far),
                             .host_of = impl->topology.host_of,
                             .secret = impl->job ? impl->job->state()->options.secret : "",
                             .address = impl->job ? impl->job->state()->address() : "",
                             .timeout = options.timeout},
                            until);
  } else if (any_far) {
    if (!card.run) throw InternalError("a world with far ranks has nothing that runs its card");
    ground.far_arenas.resize(bootstrap.size());
    for (uint32_t rank = 0; rank < bootstrap.size(); ++rank)
      if (far[rank] && ground.far_arenas[rank] == nullptr)
        ground.far_arenas[rank] = impl->arena->base_of(rank);
    const SimulatedNetwork::Place place{.bootstrap = bootstrap,
                                        .abort_flag = *impl->abort_flag,
                                        .arena = *impl->arena,
                                        .far_arenas = std::move(ground.far_arenas),
                                        .timeout = options.timeout};
    impl->network = std::make_shared<SimulatedNetwork>(place, card, until);
  }
  for (uint32_t rank = 0; impl->network && rank < bootstrap.size(); ++rank) {
    PeerReach& peer = impl->topology.peers[rank];
    if (peer.reach != Reach::put_signal) continue;
    std::string way = impl->network->way(rank), why_not = impl->network->why_not(rank);
    if (!way.empty()) peer.how = std::move(way);
    if (!why_not.empty())
      peer = {.reach = Reach::none, .how = "", .why_not = peer.why_not + ", and " + why_not};
  }
  impl->card = std::move(card);
  impl->make_network = std::move(network);
  // Memory of one host can be no witness to several: their halves do not go on.
  if (impl->job && impl->topology.hosts == 1 && impl->fabric->hosts_are_machines())
    impl->job->state()->share_witness(bootstrap, until);
  // No rank may store into a region before its owner is ready for it.
  if (inherited.check_at_last && inherited.mutant != WorldMutant::plain_last_barrier) {
    bootstrap.check_while_waiting({});
    bootstrap.barrier("world is made", until, inherited.check_at_last);
  } else {
    bootstrap.barrier("world is made", until);
    bootstrap.check_while_waiting({});
  }
  impl->is_made = true;
  return WorldAccess::make(std::move(impl));
}

/// Tells the other ranks that this one sends nothing more in the world.
void end_part(WorldAccess::Impl& impl) {
  // Stores of this rank's kernels, and what they have posted, arrive before the others hear that
  // there will be no more.
  impl.accelerator->drain();
  if (impl.network) impl.network->drain_at_end(impl.accelerator->now() + impl.options.timeout);
  impl.bootstrap->say_gone_on();
}

std::unique_ptr<World> join_members(JobMember self, const Hardware& hardware,
                                    const WorldOptions& options,
                                    std::shared_ptr<const AbsenceWatch> absences,
                                    const std::vector<uint32_t>& slots) {
  check_options(options);
  const TimePoint until = hardware.accelerator->now() + options.timeout;
  const bool follows_job = self.job != nullptr && slots.empty() && !options.compact;
  return JobWorld(std::move(self), hardware, options, std::move(absences), until,
                  {.slots = slots, .renumbers = options.compact, .follows_job = follows_job})
      .make();
}

std::unique_ptr<World> join_job(const std::shared_ptr<Job>& job, const Hardware& hardware,
                                const WorldOptions& options, std::function<void()> check,
                                const std::vector<uint32_t>& slots) {
  // Shares the job, which must outlive every world over its mesh.
  const std::shared_ptr<ProcessRanks> ranks(job, &job->state()->ranks());
  const auto check_ended = [state = job->state().get(), check = std::move(check)] {
    state->check_ended();
    if (check) check();
  };
  return join_members({job, ranks, check_ended}, hardware, options,
                      std::make_shared<const AbsenceWatch>(), slots);
}

std::unique_ptr<World> WorldAccess::make(std::unique_ptr<Impl> impl) {
  return std::unique_ptr<World>(new World(std::move(impl)));
}

std::shared_ptr<World> WorldAccess::pinned(const World& world) {
  return std::shared_ptr<World>(new World(world.impl_));
}

void WorldAccess::go_on_as(World& world, World& next) {
  const std::lock_guard lock(world.mutex_);
  // A call of `cancel` that this thread has not seen yet must not get lost.
  if (world.impl_->abort_flag->cancelled()) next.impl_->abort_flag->cancel();
  world.impl_ = next.impl_;
}

World::Impl::~Impl() {
  // Threads say goodbye; a world that was not made has no rank that waits for this one alone.
  if (!is_made || !processes) return;
  try {
    end_part(*this);
  } catch (const std::exception&) {
    // A destructor cannot report an error; waits for this rank then end at their deadlines.
  }
}

World::World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
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
std::vector<NetworkPath> World::network_paths() const {
  return impl_->network ? impl_->network->paths() : std::vector<NetworkPath>();
}
std::chrono::nanoseconds World::timeout() const {
  return impl_->options.timeout;
}

std::shared_ptr<Job> World::job() const {
  if (impl_->job) return impl_->job;
  throw Unsupported("job",
                    "the ranks of this world are threads of one process, which are no job: "
                    "make it of processes, by launch(..., processes=True) or connect");
}

std::vector<std::vector<std::byte>> World::all_gather(std::span<const std::byte> mine,
                                                      const std::string& what) {
  return impl_->bootstrap->all_gather(mine, what, impl_->accelerator->now() + timeout());
}

void World::barrier(const std::string& what) {
  impl_->bootstrap->barrier(what, impl_->accelerator->now() + timeout());
}

namespace {

/// Has ranks that share its device launch without this one.
void retire(Accelerator* accelerator) {
  if (auto* const joint = dynamic_cast<JointLauncher*>(accelerator)) joint->retire();
}

}  // namespace

void World::cancel() {
  const std::lock_guard lock(mutex_);
  impl_->abort_flag->cancel();
  retire(impl_->accelerator.get());
}

std::function<void()> World::goodbye() const {
  const auto& mesh = impl_->bootstrap->mesh();
  if (!mesh->one_process()) throw Unsupported("goodbye", "processes send it when their worlds end");
  return [mesh = std::weak_ptr(mesh), accelerator = std::weak_ptr(impl_->accelerator),
          network = std::weak_ptr(impl_->network), timeout = timeout()] {
    // Stores of running kernels must arrive before the goodbye, which ends the waits for them, and
    // so must what they have posted.
    const auto gpu = accelerator.lock();
    if (gpu) gpu->drain();
    if (const auto still = network.lock(); still && gpu) still->drain_at_end(gpu->now() + timeout);
    if (const auto still = mesh.lock()) still->leave();
    retire(gpu.get());
  };
}

namespace {

/// Returns the present ones of `without`, ascending. Throws InvalidArgument if one is no other
/// rank.
std::vector<uint32_t> present_others(const Bootstrap& ranks, const std::vector<uint32_t>& without) {
  std::vector<uint32_t> others;
  for (const uint32_t rank : std::set(without.begin(), without.end())) {
    if (rank >= ranks.size()) {
      throw InvalidArgument("without", fmt::format("ranks below {}", ranks.size()),
                            fmt::format("{}", rank));
    }
    if (rank == ranks.rank()) {
      throw InvalidArgument("without", "ranks other than this one", fmt::format("{}", rank));
    }
    if (ranks.present(rank)) others.push_back(rank);
  }
  return others;
}

/// Returns the maker of the next world of the same processes.
JobWorld next_of_job(WorldAccess::Impl& impl, const WorldOptions& options, TimePoint until,
                     SlotChoice choice, std::function<void()> check = {}) {
  const auto check_all = [&impl, what = choice.what, check = std::move(check)] {
    impl.abort_flag->check_ended(what);
    if (check) check();
  };
  choice.slots = impl.bootstrap->membership().slots;
  return JobWorld({impl.job, impl.processes, check_all, impl.mutant},
                  {impl.accelerator, impl.fabric, impl.make_network}, options, impl.absences, until,
                  std::move(choice));
}

/// Makes the world. A timeout names a rank that did not come to this attempt. After any other
/// failure the caller may name the same ranks again, which keep their excuses.
std::unique_ptr<World> make(WorldAccess::Impl& impl, JobWorld& next) {
  try {
    return next.make();
  } catch (const PeerTimeout&) {
    impl.epoch = impl.processes->epoch();
    throw;
  }
}

std::unique_ptr<World> rebuild_of_job(WorldAccess::Impl& impl, const std::vector<uint32_t>& without,
                                      const WorldOptions& options, TimePoint until) {
  constexpr const char* kRebuild = "rebuild";
  const std::vector<uint32_t> leave = present_others(*impl.bootstrap, without);
  // It does not wait for the others to agree on one that is gone.
  const auto check = [&impl, all_stay = leave.empty()] {
    const std::vector<uint32_t> gone = impl.abort_flag->gone_ranks();
    if (all_stay && !gone.empty()) throw PeerLost({.rank = gone.front(), .phase = kRebuild});
  };
  JobWorld next = next_of_job(impl, options, until,
                              {.processes = impl.members,
                               .renumbers = true,
                               .are_all_needed = leave.empty(),
                               .what = kRebuild},
                              check);
  next.leave_out(leave, impl.epoch);
  return make(impl, next);
}

WorldAccess::Impl& of_processes(const World& world) {
  WorldAccess::Impl& impl = WorldAccess::impl(world);
  if (impl.job) return impl;
  throw Unsupported("replace", "the ranks of this world are threads of one process");
}

}  // namespace

std::map<uint32_t, uint64_t> leave_out(World& world, const std::vector<uint32_t>& ranks) {
  WorldAccess::Impl& impl = of_processes(world);
  const std::vector<uint32_t> leave = present_others(*impl.bootstrap, ranks);
  JobWorld next = next_of_job(impl, impl.options, impl.accelerator->now() + world.timeout(),
                              {.processes = impl.members, .what = "replace"});
  next.leave_out(leave, impl.epoch);
  const membership::View members = next.await_members();
  std::map<uint32_t, uint64_t> gone;
  for (const membership::Member& member : impl.members.members) {
    const auto& slots = impl.bootstrap->membership().slots;
    const auto rank = static_cast<uint32_t>(std::ranges::find(slots, member.slot) - slots.begin());
    if (!members.contains(member)) gone.emplace(rank, member.incarnation);
  }
  return gone;
}

std::unique_ptr<World> refill(World& world, const std::vector<uint32_t>& ranks, size_t arena_bytes,
                              std::chrono::nanoseconds timeout) {
  WorldAccess::Impl& impl = of_processes(world);
  const TimePoint until = impl.accelerator->now() + timeout;
  for (const uint32_t rank : ranks)
    impl.job->replace(impl.bootstrap->membership().slots.at(rank),
                      std::max(until - impl.accelerator->now(), std::chrono::nanoseconds(1)));
  WorldOptions options = impl.options;
  options.arena_bytes = arena_bytes;
  JobWorld next = next_of_job(impl, options, until, {.follows_job = impl.follows_job});
  return make(impl, next);
}

std::vector<uint32_t> World::lost() const {
  return impl_->abort_flag->gone_ranks();
}

std::unique_ptr<World> World::rebuild(const std::vector<uint32_t>& without, size_t arena_bytes) {
  const TimePoint until = impl_->accelerator->now() + timeout();
  WorldOptions options = impl_->options;
  if (arena_bytes != 0) options.arena_bytes = arena_bytes;
  if (impl_->processes) return rebuild_of_job(*impl_, without, options, until);
  Bootstrap& ranks = *impl_->bootstrap;
  Membership next = ranks.membership().without(present_others(ranks, without));
  next.generation = ranks.agree_on_generation(next.slots, "rebuild", until, {});
  Inheritance inherited{.mutant = impl_->mutant};
  for (uint32_t rank = 0; rank < size(); ++rank) {
    const bool stays = std::ranges::binary_search(next.slots, ranks.membership().slots[rank]);
    if (!stays) inherited.left_out.push_back(rank);
  }
  return join(next, ranks.mesh(), impl_->accelerator, impl_->fabric, options, impl_->absences,
              impl_->card, impl_->make_network, std::move(inherited));
}

std::vector<uint32_t> World::left_out() const {
  return impl_->left_out;
}

const Recoveries* recoveries_of(const World& world) {
  const WorldAccess::Impl& impl = WorldAccess::impl(world);
  return impl.follows_job ? &impl.job->state()->recoveries() : nullptr;
}

uint64_t membership_epoch_of(const World& world) {
  return WorldAccess::impl(world).epoch;
}

void go_on(World& world) {
  const std::shared_ptr<World> before = WorldAccess::pinned(world);
  WorldAccess::Impl& impl = WorldAccess::impl(*before);
  const auto check = [&impl] {
    if (impl.abort_flag->cancelled()) throw Cancelled("world: go on in the next epoch");
  };
  check();
  end_part(impl);
  const auto next =
      join_job(impl.job, {impl.accelerator, impl.fabric, impl.make_network}, impl.options, check);
  WorldAccess::go_on_as(world, *next);
}

std::optional<OnFailure> on_failure_of(const World& world) {
  const WorldAccess::Impl& impl = WorldAccess::impl(world);
  if (!impl.follows_job) return std::nullopt;
  return impl.job->state()->options.on_failure;
}

bool continue_job_after(World& world, uint32_t rank, bool silent) {
  const WorldAccess::Impl& impl = WorldAccess::impl(world);
  if (!impl.follows_job || rank == world.rank()) return false;
  const std::shared_ptr<Job> job = impl.job;
  const OnFailure on_failure = job->state()->options.on_failure;
  if (on_failure == OnFailure::raise || (silent && on_failure == OnFailure::retry)) return false;
  if (silent) {
    // Not by Job::evict, which would refuse where the survivors are no majority by themselves.
    const std::array slots{rank};
    impl.processes->evict(impl.members, slots, impl.epoch, *impl.accelerator,
                          impl.accelerator->now() + impl.options.timeout,
                          [&] { job->state()->check_ended(); });
  }
  job->recover(on_failure == OnFailure::retry);
  return true;
}

bool is_present(const World& world, uint32_t rank) {
  return WorldAccess::impl(world).bootstrap->present(rank);
}
std::vector<uint32_t> present_ranks(const World& world) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < world.size(); ++rank)
    if (is_present(world, rank)) ranks.push_back(rank);
  return ranks;
}
Accelerator& accelerator_of(const World& world) {
  return *WorldAccess::impl(world).accelerator;
}
Arena& arena_of(const World& world) {
  return *WorldAccess::impl(world).arena;
}
AbortFlag& abort_flag_of(const World& world) {
  return *WorldAccess::impl(world).abort_flag;
}
Bootstrap& bootstrap_of(const World& world) {
  return *WorldAccess::impl(world).bootstrap;
}
Network* network_of(const World& world) {
  return WorldAccess::impl(world).network.get();
}
uint32_t& epoch_before(const World& world) {
  return WorldAccess::impl(world).epoch_before;
}

}  // namespace tokenyard
