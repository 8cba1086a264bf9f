/// What a World is made of, for the library's own parts: those that launch kernels and reserve
/// arena memory. Callers of the library see none of it.
#pragma once

#include <memory>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

class Accelerator;
class Arena;
class AbortFlag;
class Network;

struct WorldAccess {
  using Impl = World::Impl;
  /// Returns a World made of these parts.
  static std::unique_ptr<World> make(std::unique_ptr<Impl> impl);
  static Impl& impl(const World& world) { return *world.impl_; }
};

/// Returns whether a process fills the rank's slot; if not, the rank is absent.
bool is_present(const World& world, uint32_t rank);
/// Returns the present ranks, ascending.
std::vector<uint32_t> present_ranks(const World& world);
Accelerator& accelerator_of(const World& world);
Arena& arena_of(const World& world);
/// Returns the flag that ends this rank's kernel waits; it raises the error of a failed one.
AbortFlag& abort_flag_of(const World& world);
/// Returns the network to ranks with put/signal reach; null if there are none.
Network* network_of(const World& world);
/// Returns the epoch after which the exchanges of this world count their calls: 0, unless a test
/// begins where epochs wrap. Alike on all ranks, and set before an exchange is made.
uint32_t& epoch_before(const World& world);

}  // namespace tokenyard
