/// The ranks that a world of processes is rebuilt without: those that its caller names, and those
/// that are gone.
#pragma once

#include <set>
#include <vector>

#include "fabric/world_access.hpp"
#include "world/parts.hpp"

namespace tokenyard {

class Departures {
 public:
  /// `named`: ranks of the world. Throws InvalidArgument if there are no such others.
  Departures(WorldAccess::Impl& impl, const std::vector<uint32_t>& named);

  /// Has the members agree to go on without them, except those that waited for a rank that is lost.
  /// Returns all ranks that are no members then, absent ones included.
  /// Throws what ProcessRanks::evict throws, in ranks.
  const std::vector<uint32_t>& agree(TimePoint until);
  /// Returns the members at the last agreement: waits that fail later have no older excuse than its
  /// epoch.
  const membership::View& members() const { return members_; }
  /// Throws PeerLost if a rank besides `gone` is no member any more, and what ends every wait of
  /// this rank.
  void require_only(const std::vector<uint32_t>& gone) const;
  /// Adds the ranks that have gone by now. Returns whether there are any besides `gone`.
  bool have_grown(const std::vector<uint32_t>& gone);

 private:
  void check_ended() const;
  uint32_t ranks() const;
  bool is_absent(uint32_t rank) const;  ///< it never was here, and the rebuilt world is without it
  uint32_t slot_of(uint32_t rank) const;
  /// Returns whether the rank's process is none of `members`; another one may hold its slot.
  bool is_out(uint32_t rank, const membership::View& members) const;
  /// Returns `ranks()` for a slot that is not of this world.
  uint32_t rank_of(uint32_t slot) const;

  WorldAccess::Impl& impl_;
  std::set<uint32_t> named_;
  // The last agreement.
  membership::View members_;
  std::vector<uint32_t> gone_;
};

}  // namespace tokenyard
