/// The implementation of a World, and the only function that assembles one. A new kind of world
/// supplies an accelerator, a mesh and a fabric, and calls `join`.
#pragma once

#include <functional>
#include <memory>

#include "device/accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/absence_watch.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/fabric.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/simulated_network.hpp"
#include "membership/view.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

class Job;
class ProcessRanks;

/// Where a rank's kernels run, and how they reach its peers' memory.
struct Hardware {
  std::shared_ptr<Accelerator> accelerator;
  std::shared_ptr<Fabric> fabric;
  MakeNetwork network = {};  ///< of the ranks that `fabric` has no load/store reach to
};

/// A deliberate bug, which tests must notice. Only they can select it.
enum class WorldMutant : uint8_t {
  none,
  plain_last_barrier,  ///< a rank that is lost in the last wait holds that up on some survivors
};

/// Members in order of construction; destruction is in reverse.
struct World::Impl {
  /// Tells the other ranks of the job that this one sends nothing more here.
  ~Impl();

  WorldOptions options;
  std::shared_ptr<Accelerator> accelerator;
  std::shared_ptr<Fabric> fabric;
  std::shared_ptr<const AbsenceWatch> absences;  ///< of this process
  /// The job and the mesh if its ranks are processes, which agree on who is in. Else null.
  std::shared_ptr<Job> job;
  std::shared_ptr<ProcessRanks> processes;
  std::unique_ptr<AbortFlag> abort_flag;
  std::unique_ptr<Bootstrap> bootstrap;
  std::unique_ptr<Arena> arena;
  SimulatedCard card;
  MakeNetwork make_network;
  std::shared_ptr<Network> network;  ///< if some peers are reachable by put/signal only
  Topology topology;
  uint64_t epoch = 0;              ///< of the membership, before any wait that may still fail
  membership::View members;        ///< the processes that its slots are of; empty without a job
  bool follows_job = false;        ///< whether its ranks are those of its job
  std::vector<uint32_t> left_out;  ///< ranks of the world before, see World::left_out
  uint32_t epoch_before = 0;       ///< see epoch_before()
  bool is_made = false;            ///< others may wait in it for this rank
  WorldMutant mutant = WorldMutant::none;
};

/// Things that a world takes over from its job, and a rebuilt one from the one before.
struct Inheritance {
  std::shared_ptr<Job> job = {};
  membership::View members = {};  ///< see World::Impl
  std::vector<uint32_t> left_out = {};
  Bootstrap::Check check_while_made = {};  ///< called in every wait until all is there
  /// Called in the last wait of a job's world, with every rank that has not come to it yet.
  std::function<void(uint32_t rank)> check_at_last = {};
  bool follows_job = false;
  WorldMutant mutant = WorldMutant::none;
};

/// Returns one rank's end of a world. Collective over the mesh: every slot of `ranks`, or every
/// slot there is, calls it, from its own thread (or fiber). `network` makes the network, if the
/// fabric has far peers; if it is empty, `card` runs a simulated one. `absences`: null in the
/// simulator, whose time stops when the process does.
std::unique_ptr<World> join(const Membership& ranks, std::shared_ptr<Mesh> mesh,
                            std::shared_ptr<Accelerator> accelerator,
                            std::shared_ptr<Fabric> fabric, const WorldOptions& options,
                            std::shared_ptr<const AbsenceWatch> absences, SimulatedCard card = {},
                            MakeNetwork network = {}, Inheritance inherited = {});

/// One process of a job, as the maker of its worlds sees it.
struct JobMember {
  std::shared_ptr<Job> job;  ///< outlives the worlds; null in the simulator
  std::shared_ptr<ProcessRanks> ranks;
  std::function<void()> check_ended;  ///< throws what has ended its membership, if something has
  WorldMutant mutant = WorldMutant::none;
};

/// Returns a world of the members, as Job::world does. `absences`: as for `join`. `slots`: [ranks]
/// of the world, if they are not all slots of the job. WorldOptions::compact leaves empty ones out.
std::unique_ptr<World> join_members(JobMember self, const Hardware& hardware,
                                    const WorldOptions& options,
                                    std::shared_ptr<const AbsenceWatch> absences,
                                    const std::vector<uint32_t>& slots = {});
/// Returns what Job::world does. Calls `check` in every wait; it may throw. `slots` as above.
std::unique_ptr<World> join_job(const std::shared_ptr<Job>& job, const Hardware& hardware,
                                const WorldOptions& options, std::function<void()> check = {},
                                const std::vector<uint32_t>& slots = {});
/// Throws InvalidArgument if an option is wrong: before the first side effect, alike on all ranks.
void check_options(const WorldOptions& options);

}  // namespace tokenyard
