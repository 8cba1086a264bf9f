#include "tokenyard/world.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "fabric/region_arena.hpp"
#include "fabric/world_access.hpp"
#include "job/job_state.hpp"
#include "tokenyard/job.hpp"
#include "world/departures.hpp"
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

namespace {

/// Things that a world takes over from its job, and a rebuilt one from the one before.
struct Inheritance {
  std::shared_ptr<Job> job;
  membership::View members;  ///< see World::Impl
  std::vector<uint32_t> left_out;
  Bootstrap::Check check_while_made;  ///< called in every wait until all is there
  /// Called in the last wait of a job's world, with every rank that has not come to it yet.
  std::function<void(uint32_t rank)> check_at_last;
  bool follows_job = false;
  WorldMutant mutant = WorldMutant::none;
};

std::unique_ptr<World> join_as(const Membership& ranks, std::shared_ptr<Mesh> mesh,
                               std::shared_ptr<Accelerator> accelerator,
                               std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                               std::shared_ptr<const AbsenceWatch> absences, SimulatedCard card,
                               MakeNetwork network, Inheritance inherited = {}) {
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
      std::make_unique<RegionArena>(impl->accelerator, std::move(ground.region), options.timeout);
  std::vector<bool> far;
  for (const PeerReach& peer : impl->topology.peers) far.push_back(peer.reach == Reach::put_signal);
  const bool any_far = std::ranges::find(far, true) != far.end();
  if (any_far && network) {
    impl->network = network({.bootstrap = bootstrap,
                             .abort_flag = *impl->abort_flag,
                             .arena = *impl->arena,
                             .far = std::move(far),
                             .secret = impl->job ? impl->job->state()->options.secret : "",
                             .address = impl->job ? impl->job->state()->address() : "",
                             .timeout = options.timeout},
                            until);
  } else if (any_far) {
    if (!card.run) throw InternalError("a world with far ranks has nothing that runs its card");
    const SimulatedNetwork::Place place{.bootstrap = bootstrap,
                                        .abort_flag = *impl->abort_flag,
                                        .arena = *impl->arena,
                                        .far_arenas = std::move(ground.far_arenas),
                                        .timeout = options.timeout};
    impl->network = std::make_shared<SimulatedNetwork>(place, card, until);
  }
  for (uint32_t rank = 0; impl->network && rank < bootstrap.size(); ++rank) {
    if (!impl->network->reaches(rank)) continue;
    std::string way = impl->network->way(rank);
    if (!way.empty()) impl->topology.peers[rank].how = std::move(way);
  }
  impl->card = std::move(card);
  impl->make_network = std::move(network);
  // Memory of one host can be no witness to several: their halves do not go on.
  if (impl->job && impl->topology.hosts == 1) impl->job->state()->share_witness(bootstrap, until);
  // No rank may store into a region before its owner is ready for it.
  if (inherited.check_at_last && inherited.mutant != WorldMutant::plain_last_barrier) {
    bootstrap.check_while_waiting({});
    bootstrap.barrier_of_survivors("world is made", until, inherited.check_at_last);
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
  if (impl.network) impl.network->drain(impl.accelerator->now() + impl.options.timeout);
  impl.bootstrap->say_gone_on();
}

std::unique_ptr<World> join_next(WorldAccess::Impl& impl, const Membership& next,
                                 const WorldOptions& options, const membership::View& members,
                                 Bootstrap::Check check = {},
                                 std::function<void(uint32_t rank)> check_at_last = {}) {
  const Bootstrap& before = *impl.bootstrap;
  Inheritance inherited{.job = impl.job,
                        .members = members,
                        .left_out = {},
                        .check_while_made = std::move(check),
                        .check_at_last = std::move(check_at_last),
                        .mutant = impl.mutant};
  for (uint32_t rank = 0; rank < before.size(); ++rank) {
    const bool stays = std::ranges::binary_search(next.slots, before.membership().slots[rank]);
    if (!stays) inherited.left_out.push_back(rank);
  }
  return join_as(next, before.mesh(), impl.accelerator, impl.fabric, options, impl.absences,
                 impl.card, impl.make_network, std::move(inherited));
}

/// Another rank has begun to rebuild anew, so nobody completes this attempt.
struct Superseded : Error {
  using Error::Error;
};

/// Throws Superseded if the rank of the slot has asked for a later generation.
void check_not_anew(const Mailbox& mailbox, uint32_t slot, uint32_t generation) {
  const auto asked = mailbox.latest_rebuild(slot);
  if (asked && asked->generation > generation) throw Superseded("begun anew");
}

/// Starts anew with every further loss, which all survivors learn of: the one that notices it asks
/// for a later generation, which ends the attempts of the others. Of the survivors, all have the
/// same world in the end, or none (JobWorld).
std::unique_ptr<World> rebuild_by_membership(WorldAccess::Impl& impl,
                                             const std::vector<uint32_t>& without,
                                             const WorldOptions& options, TimePoint until) {
  const Bootstrap& bootstrap = *impl.bootstrap;
  Departures departures(impl, without);
  for (;;) {
    const std::vector<uint32_t> gone = departures.agree(until);
    if (without.empty()) departures.require_only({});
    try {
      const Membership next =
          impl.bootstrap->agree_without(gone, until, [&] { departures.require_only(gone); });
      if (without.empty()) return join_next(impl, next, options, departures.members());
      const auto check = [&](uint32_t slot) {
        check_not_anew(bootstrap.mesh()->mailbox(), slot, next.generation);
      };
      return join_next(
          impl, next, options, departures.members(),
          [&] { std::ranges::for_each(next.slots, check); },
          [&](uint32_t rank) {
            impl.abort_flag->check_ended("rebuild");
            check(next.slots[rank]);
          });
    } catch (const Superseded&) {
      departures.have_grown(gone);
    } catch (const Error& error) {
      const bool late = impl.accelerator->now() >= until;
      if (!without.empty() && !late && departures.have_grown(gone)) continue;
      // A timeout names a rank that did not come to this attempt. After any other failure the
      // caller may name the same ranks again, which keep their excuses.
      if (dynamic_cast<const PeerTimeout*>(&error) != nullptr)
        impl.epoch = departures.members().epoch;
      throw;
    }
  }
}

/// Makes worlds of a job's members.
class JobWorld {
 public:
  JobWorld(JobMember self, const Hardware& hardware, const WorldOptions& options,
           std::shared_ptr<const AbsenceWatch> absences)
      : self_(std::move(self)),
        ranks_(self_.ranks),
        hardware_(hardware),
        options_(options),
        until_(hardware.accelerator->now() + options.timeout),
        absences_(std::move(absences)) {}

  /// Starts anew with every change of the members, which all of them learn of: one that notices it
  /// alone asks for a later generation, which ends the attempts of the others.
  ///
  /// Invariant: of the members that stay, all have the same world in the end, or none. So none
  /// gives up one that another has already, and might have rebuilt: the ranks of that one would
  /// have other numbers than those of a new one.
  std::unique_ptr<World> make() {
    for (;;) {
      members_ = ranks_->await_members(*hardware_.accelerator, until_, [this] { check_ended(); });
      try {
        Membership ranks = all_slots();
        ranks.generation = agree(ranks);
        Inheritance inherited{self_.job,
                              members_,
                              {},
                              [this, &ranks] {
                                check_ended();
                                check_members(ranks.generation);
                              },
                              [this, &ranks](uint32_t rank) {
                                check_ended();
                                check_not_anew(rank, ranks.generation);
                              },
                              self_.job != nullptr,
                              self_.mutant};
        return join_as(ranks, ranks_, hardware_.accelerator, hardware_.fabric, options_, absences_,
                       {}, hardware_.network, std::move(inherited));
      } catch (const Superseded&) {
        continue;
      } catch (const PeerLost&) {
        // It is no member, or none any more once the others have agreed on that.
        if (hardware_.accelerator->now() >= until_) throw;
      }
    }
  }

 private:
  void check_ended() const { self_.check_ended(); }

  /// Newcomers change nothing for a world that is being made without them.
  void check_members(uint32_t generation) const {
    const control::View now = ranks_->view();
    for (const control::Member& member : members_.members) {
      if (!now.contains(member)) throw Superseded("world: a member is lost");
      check_not_anew(member.slot, generation);
    }
  }

  void check_not_anew(uint32_t slot, uint32_t generation) const {
    tokenyard::check_not_anew(ranks_->mailbox(), slot, generation);
  }

  Membership all_slots() const {
    Membership ranks{.generation = ranks_->mailbox().newest_generation(),
                     .rank = ranks_->slot(),
                     .slots = std::vector<uint32_t>(members_.slots, kAbsent)};
    for (const control::Member& member : members_.members) ranks.slots[member.slot] = member.slot;
    return ranks;
  }

  uint32_t agree(const Membership& ranks) const {
    AbortFlag flag(*hardware_.accelerator, members_.slots, options_.timeout, absences_);
    Bootstrap asking(ranks_, ranks, *hardware_.accelerator, flag);
    std::vector<uint32_t> present;
    for (const control::Member& member : members_.members) present.push_back(member.slot);
    return asking.agree_on_generation(present, "world: this rank's call of Job::world", until_,
                                      [this] {
                                        check_ended();
                                        if (ranks_->epoch() != members_.epoch)
                                          throw Superseded("world: the membership has changed");
                                      });
  }

  const JobMember self_;
  const std::shared_ptr<ProcessRanks> ranks_;
  const Hardware hardware_;
  const WorldOptions options_;
  const TimePoint until_;
  const std::shared_ptr<const AbsenceWatch> absences_;
  control::View members_;
};

}  // namespace

std::unique_ptr<World> join_members(JobMember self, const Hardware& hardware,
                                    const WorldOptions& options,
                                    std::shared_ptr<const AbsenceWatch> absences) {
  check_options(options);
  return JobWorld(std::move(self), hardware, options, std::move(absences)).make();
}

std::unique_ptr<World> join_job(const std::shared_ptr<Job>& job, const Hardware& hardware,
                                const WorldOptions& options, std::function<void()> check) {
  // Shares the job, which must outlive every world over its mesh.
  const std::shared_ptr<ProcessRanks> ranks(job, &job->state()->ranks());
  const auto check_ended = [state = job->state().get(), check = std::move(check)] {
    state->check_ended();
    if (check) check();
  };
  return join_members({job, ranks, check_ended}, hardware, options,
                      std::make_shared<const AbsenceWatch>());
}

std::unique_ptr<World> join(std::shared_ptr<Mesh> mesh, const Membership& ranks,
                            std::shared_ptr<Accelerator> accelerator,
                            std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                            std::shared_ptr<const AbsenceWatch> absences, SimulatedCard card,
                            MakeNetwork network) {
  return join_as(ranks, std::move(mesh), std::move(accelerator), std::move(fabric), options,
                 std::move(absences), std::move(card), std::move(network));
}

std::unique_ptr<World> join(std::shared_ptr<Mesh> mesh, std::shared_ptr<Accelerator> accelerator,
                            std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                            std::shared_ptr<const AbsenceWatch> absences, SimulatedCard card,
                            MakeNetwork network) {
  const Membership everybody = Membership::of(*mesh);
  return join(std::move(mesh), everybody, std::move(accelerator), std::move(fabric), options,
              std::move(absences), std::move(card), std::move(network));
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

void World::cancel() {
  const std::lock_guard lock(mutex_);
  impl_->abort_flag->cancel();
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
    if (const auto still = network.lock(); still && gpu) still->drain(gpu->now() + timeout);
    if (const auto still = mesh.lock()) still->leave();
  };
}

std::vector<uint32_t> World::lost() const {
  return impl_->abort_flag->gone_ranks();
}

std::unique_ptr<World> World::rebuild(const std::vector<uint32_t>& without, size_t arena_bytes) {
  const TimePoint until = impl_->accelerator->now() + timeout();
  WorldOptions options = impl_->options;
  if (arena_bytes != 0) options.arena_bytes = arena_bytes;
  if (impl_->processes) return rebuild_by_membership(*impl_, without, options, until);
  const Membership next = impl_->bootstrap->agree_without(without, until);
  return join_next(*impl_, next, options, impl_->members);
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
Network* network_of(const World& world) {
  return WorldAccess::impl(world).network.get();
}
uint32_t& epoch_before(const World& world) {
  return WorldAccess::impl(world).epoch_before;
}

}  // namespace tokenyard
