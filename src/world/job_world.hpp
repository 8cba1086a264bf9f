/// Makes worlds of a job's members: of all of them, or of those that sit in another world.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "job/process_ranks.hpp"
#include "world/parts.hpp"

namespace tokenyard {

/// The ranks of a world that is to be made.
struct SlotChoice {
  std::vector<uint32_t> slots = {};  ///< [ranks] of each, or kAbsent; empty: all slots of the job
  membership::View processes = {};   ///< that alone may sit there; without an epoch: any member
  bool renumbers = false;            ///< empty slots are left out; else their ranks are absent
  /// PeerLost names a rank that is gone, and a failure that all ranks see is raised on all of them:
  /// one that then calls again does not have the others begin anew.
  bool are_all_needed = false;
  bool follows_job = false;                                    ///< see World::Impl
  std::string what = "world: this rank's call of Job::world";  ///< alike on all ranks; for errors
};

class JobWorld {
 public:
  JobWorld(JobMember self, const Hardware& hardware, const WorldOptions& options,
           std::shared_ptr<const AbsenceWatch> absences, TimePoint until, SlotChoice choice = {});

  /// Has the members agree to go on without these ranks, except those that waited for a rank that
  /// was lost after epoch `since`. Throws what ProcessRanks::evict throws, in ranks.
  void leave_out(const std::vector<uint32_t>& ranks, control::Epoch since);
  /// Waits until this process hears all members, and returns them. Members that are gone meanwhile
  /// are evicted. Throws what ProcessRanks::await_members throws, in ranks.
  control::View await_members() const;
  /// Starts anew with every change of the members, which all of them learn of: one that notices it
  /// alone asks for a later generation, which ends the attempts of the others.
  ///
  /// Invariant: of the members that stay, all have the same world in the end, or none. So none
  /// gives up one that another has already, and might have rebuilt: the ranks of that one would
  /// have other numbers than those of a new one.
  std::unique_ptr<World> make();

 private:
  void check_ended() const { self_.check_ended(); }
  /// Calls `call`, and throws its errors that name slots in ranks.
  template <class Call>
  auto in_ranks(Call call) const;
  uint32_t rank_of(uint32_t slot) const;
  /// Returns the members of the chosen slots, in the slots' order.
  Membership chosen_members() const;
  uint32_t agree(const Membership& ranks) const;
  /// Newcomers change nothing for a world that is being made without them.
  void check_members(uint32_t generation) const;
  void check_not_anew(uint32_t slot, uint32_t generation) const;

  const JobMember self_;
  const std::shared_ptr<ProcessRanks> ranks_;
  const Hardware hardware_;
  const WorldOptions options_;
  const std::shared_ptr<const AbsenceWatch> absences_;
  const TimePoint until_;
  const SlotChoice choice_;
  control::View members_;  ///< those of the chosen slots
};

}  // namespace tokenyard
