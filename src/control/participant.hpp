/// What the control plane demands of whoever runs the operations, and what it offers in return. The
/// engine is the one participant in a process; the simulator has many.
#pragma once

#include <string>
#include <vector>

#include "control/contact.hpp"
#include "membership/membership.hpp"

namespace tokenyard::control {

/// Called by one thread of the control plane, which does nothing else: a call may take long, but
/// must not wait for an operation.
class Participant {
 public:
  virtual ~Participant() = default;
  /// From now until `install` no operation of `epoch` commits. Returns how far each group is.
  virtual std::vector<GroupProgress> freeze(Epoch epoch) = 0;
  /// Operations up to the verdict's numbers commit, all others that have begun are undone; then the
  /// next epoch begins. Also how the first epoch begins.
  virtual void install(const Verdict& verdict, const Contacts& contacts) = 0;
  /// Fails everything, now and later.
  virtual void fenced(Epoch epoch, const std::string& why) = 0;
  /// Somebody who is about to leave waits until its messages have been taken: looks at what
  /// arrives for a while, though nobody here waits for it.
  virtual void attend() {}
  /// Operations cannot go on as long as this lasts; those whose deadline passes fail with it.
  virtual void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) = 0;
};

/// Called by the engine, from any thread, with or without its lock; returns at once.
class MembershipControl {
 public:
  virtual ~MembershipControl() = default;
  /// `seen_in`: the epoch in which it was noticed; what was seen in an older one may mean nothing.
  virtual void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in) = 0;
  /// See Membership for what these mean.
  virtual void admit(const std::vector<Slot>& slots, Epoch seen_in) = 0;
  virtual void withdraw(const std::vector<Slot>& slots) = 0;
  virtual void evict(const Member& member) = 0;
  virtual void recover(bool wanted) = 0;
  /// Members that have not asked for an epoch that mends. Empty if this process has not.
  virtual std::vector<Slot> recovers_late() const { return {}; }
  /// Asks the others to `attend`, until `leave`.
  virtual void drain() {}
  virtual void leave() = 0;
};

}  // namespace tokenyard::control
