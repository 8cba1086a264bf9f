/// Checks that all ranks make before they create an object together. `require_equal` and
/// `require_reach` compare exchanged values, so all ranks raise the same error. `require` checks
/// one rank's own arguments, so it raises on that rank only.
#pragma once

#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

/// Throws InvalidArgument unless `holds`.
void require(bool holds, const char* argument, std::string expected, uint64_t seen);
/// Throws InvalidArgument naming `rank` unless `seen` equals `expected`, the value on rank `first`.
void require_equal(const char* argument, uint32_t rank, uint32_t first, uint32_t expected,
                   uint32_t seen);

/// Returns `world`. Throws InvalidArgument naming the first absent rank, alike on all ranks, for an
/// `object` that needs a process in every slot.
World& with_filled_slots(World& world, const std::string& object);

/// Returns whether some rank is reached by put and signal only. Alike on all ranks.
bool spans_hosts(const World& world);

inline constexpr uint32_t kAllReached = 0xffffffff;
/// Returns the first present rank that this rank cannot reach by loads and stores, or kAllReached.
uint32_t first_unreachable(const World& world);
/// `unreachable`: [ranks] first_unreachable() of each rank, exchanged beforehand. Throws
/// Unsupported on all ranks alike if any present rank cannot reach another.
void require_reach(const World& world, const std::string& object,
                   const std::vector<uint32_t>& unreachable);
/// The same of proposals, [ranks], that bring it among other values.
template <class Proposal>
void require_reach(const World& world, const std::string& object,
                   const std::vector<Proposal>& proposals) {
  std::vector<uint32_t> unreachable;
  for (const Proposal& proposal : proposals) unreachable.push_back(proposal.unreachable);
  require_reach(world, object, unreachable);
}

}  // namespace tokenyard
