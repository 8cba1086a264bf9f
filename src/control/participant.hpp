/// The interface between the control plane and the part that runs operations. In a process that is
/// the engine; the simulator has many.
#pragma once

#include <string>
#include <vector>

#include "control/contact.hpp"
#include "membership/membership.hpp"

namespace tokenyard::control {

/// Called by one thread that does nothing else. A call may take long but must not wait for an
/// operation.
class Participant {
 public:
  virtual ~Participant() = default;
  /// Commits no operation of `epoch` until `install`. Returns the progress of each group.
  virtual std::vector<GroupProgress> freeze(Epoch epoch) = 0;
  /// Ends the epoch: commits operations up to the verdict's numbers, undoes all others that have
  /// begun, and begins the next epoch. Also begins the first epoch.
  virtual void install(const Verdict& verdict, const Contacts& contacts) = 0;
  /// Fails all operations, now and later: this process is no longer a member.
  virtual void fenced(Epoch epoch, const std::string& why) = 0;
  /// Another rank is about to leave and waits until its messages have been taken: polls for a while
  /// for what arrives, even if no caller here waits for it.
  virtual void attend() {}
  /// Operations cannot go on while this lasts; those whose deadline passes meanwhile fail with it.
  virtual void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) = 0;
};

/// Called by the engine, from any thread, with or without its lock. Returns at once.
class MembershipControl {
 public:
  virtual ~MembershipControl() = default;
  /// `seen_in`: epoch of the observation. An observation from an older epoch may mean nothing.
  virtual void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in) = 0;
  /// These are documented at Membership.
  virtual void admit(const std::vector<Slot>& slots, Epoch seen_in) = 0;
  virtual void withdraw(const std::vector<Slot>& slots) = 0;
  virtual void evict(const Member& member) = 0;
  virtual void recover(bool wanted) = 0;
  /// Returns the members that have not asked to recover; empty if this process has not.
  virtual std::vector<Slot> recovers_late() const { return {}; }
  /// Asks the others to `attend`, until `leave`.
  virtual void drain() {}
  virtual void leave() = 0;
};

}  // namespace tokenyard::control
