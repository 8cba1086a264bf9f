/// A rank's program: calls operations of each of its groups, one after another, and takes part in
/// the membership. Implemented by the stand-in and by the real engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "control/participant.hpp"

namespace tokenyard::collectives::simulated {

/// A rank's contribution, a function of its arguments, so that every rank can check every result.
inline int64_t contribution(const Member& member, GroupId group, Sequence sequence) {
  const uint64_t mixed = (member.slot + 1) * 0x9e3779b97f4a7c15u ^
                         member.incarnation * 0x85ebca6bu ^ group * 0xc2b2ae35u ^
                         sequence * 0x27d4eb2fu;
  return static_cast<int64_t>((mixed ^ mixed >> 31) >> 8);
}

class Program : public control::Participant {
 public:
  /// Callbacks of the observer.
  struct Watcher {
    /// An operation is done: in this view, with these members and this sum.
    std::function<void(GroupId, Sequence, const View&, const std::vector<Slot>&, int64_t)>
        committed;
    /// It has not happened; `left` is the content of the caller's memory now.
    std::function<void(GroupId, Sequence, int64_t left)> aborted;
    /// The program had given it up without agreement with the others, and it is done.
    std::function<void(GroupId, Sequence)> missed;
    /// It was aborted because a deadline has passed: its own, or that of a rank that reported so.
    /// `after`: last recovering epoch when it was called.
    std::function<void(GroupId, Sequence, Epoch after, bool by_itself)> timed_out;
  };

  virtual void add_group(GroupId id, std::vector<Slot> slots) = 0;
  /// Calls the group's next operation. Returns false if there is none, or not now.
  virtual bool begin(GroupId id) = 0;
  virtual void hear_of_failure() {}
  /// Something happens to its process.
  virtual void died() {}
  virtual void stopped() {}
  virtual void woke() {}
  /// The connection from a process that has died has ended.
  virtual void link_ended(const Member& gone) { (void)gone; }
  /// Has the process leave, by calling `leave` when the program is ready.
  virtual void part(std::function<void()> leave) { leave(); }
  /// Returns the ranks that the operation waits for; none if it is not under way.
  virtual std::vector<Slot> waiting_for(GroupId id, Sequence sequence) const = 0;

  virtual std::vector<GroupProgress> progress() const = 0;
  virtual Sequence begun(GroupId id) const = 0;
  virtual bool running(GroupId id) const = 0;
  virtual const View& view() const = 0;
  virtual bool frozen() const = 0;
  virtual bool misses_quorum() const = 0;
  /// Describes unfinished work besides operations; empty: none.
  virtual std::string unfinished() const { return ""; }

  Sequence committed(GroupId id) const {
    for (const GroupProgress& group : progress()) {
      if (group.group == id) return group.committed;
    }
    return 0;
  }
  std::vector<GroupId> groups() const {
    std::vector<GroupId> ids;
    for (const GroupProgress& group : progress()) ids.push_back(group.group);
    return ids;
  }

 protected:
  /// Returns the progress of all groups in a map by id.
  template <class Groups>
  static std::vector<GroupProgress> progress_of(const Groups& groups) {
    std::vector<GroupProgress> list;
    for (const auto& [id, group] : groups)
      list.push_back({id, group.slots, group.committed, group.begun});
    return list;
  }
};

}  // namespace tokenyard::collectives::simulated
