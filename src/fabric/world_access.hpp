/// What a World is made of, for the library's own parts: those that launch kernels and reserve
/// arena memory. Callers of the library see none of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

class Accelerator;
class Arena;
class AbortFlag;
class Bootstrap;
class Network;

struct WorldAccess {
  using Impl = World::Impl;
  /// Returns a World made of these parts.
  static std::unique_ptr<World> make(std::unique_ptr<Impl> impl);
  static Impl& impl(const World& world) { return *world.impl_; }
  /// Returns another World of the same parts, which keeps them when `world` goes on with others.
  static std::shared_ptr<World> pinned(const World& world);
  /// Goes on with the parts of `next`.
  static void go_on_as(World& world, World& next);
};

/// The calls by which a rank has put changes of its job's membership behind it.
struct Recoveries {
  std::atomic<uint64_t> calls = 0;  ///< that have returned
  std::atomic<uint64_t> epoch = 0;  ///< of the membership that the last one has seen
};

/// Returns the recoveries of the job that the world follows; null if it follows none: its ranks are
/// threads, or `rebuild` has renumbered them.
const Recoveries* recoveries_of(const World& world);
/// Returns the epoch of the membership in which the world was made.
uint64_t membership_epoch_of(const World& world);
/// Returns whether both are of the same parts.
inline bool are_same(const World& one, const World& other) {
  return &WorldAccess::impl(one) == &WorldAccess::impl(other);
}
/// Gives the world new memory and the ranks that are members of its job now. Collective among
/// these, as Job::world, with which it may meet. Waits of other ranks in the world of before, for
/// data that this rank has not sent, end as if it had left. Throws what Job::world throws, or
/// Cancelled; the world is then what it was, and this may be called again.
void go_on(World& world);
/// Has the job that the world follows continue after a failed wait for `rank`, as its OnFailure
/// says: waits until new processes have taken the lost ranks' places, or goes on without them, and
/// evicts `rank` if it was `silent`. Returns false if the failure is the caller's to raise. Throws
/// what Job::recover and Job::evict throw.
bool continue_job_after(World& world, uint32_t rank, bool silent);

/// Returns whether a process fills the rank's slot; if not, the rank is absent.
bool is_present(const World& world, uint32_t rank);
/// Returns the present ranks, ascending.
std::vector<uint32_t> present_ranks(const World& world);
Accelerator& accelerator_of(const World& world);
Arena& arena_of(const World& world);
/// Returns the flag that ends this rank's kernel waits; it raises the error of a failed one.
AbortFlag& abort_flag_of(const World& world);
/// Returns the messages of this rank's host thread with those of the others.
Bootstrap& bootstrap_of(const World& world);
/// Returns the network to ranks with put/signal reach; null if there are none.
Network* network_of(const World& world);
/// Returns the epoch after which the exchanges of this world count their calls: 0, unless a test
/// begins where epochs wrap. Alike on all ranks, and set before an exchange is made.
uint32_t& epoch_before(const World& world);

}  // namespace tokenyard
