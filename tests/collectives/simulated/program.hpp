/// A rank's program: calls so many operations of each of its groups, one after the other, and takes
/// part in the membership. The stand-in and the real engine are its two bodies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "control/participant.hpp"

namespace tokenyard::collectives::simulated {

/// What each rank adds, everywhere known, so that everybody can check everybody's results.
inline int64_t contribution(const Member& member, GroupId group, Sequence sequence) {
  const uint64_t mixed = (member.slot + 1) * 0x9e3779b97f4a7c15u ^
                         member.incarnation * 0x85ebca6bu ^ group * 0xc2b2ae35u ^
                         sequence * 0x27d4eb2fu;
  return static_cast<int64_t>((mixed ^ mixed >> 31) >> 8);
}

class Program : public control::Participant {
 public:
  /// Who watches from outside.
  struct Watcher {
    /// An operation is done for good: in this view, with these members, and this sum.
    std::function<void(GroupId, Sequence, const View&, const std::vector<Slot>&, int64_t)>
        committed;
    /// It has not happened; `left` is what the caller's memory holds now.
    std::function<void(GroupId, Sequence, int64_t left)> aborted;
    /// The program had given it up, and could not agree with the others on that: it is done.
    std::function<void(GroupId, Sequence)> missed;
    /// It was aborted because a deadline has passed: its own, or that of a rank that has said so.
    /// `after`: the last epoch that had mended when it was called.
    std::function<void(GroupId, Sequence, Epoch after, bool by_itself)> timed_out;
  };

  virtual void add_group(GroupId id, std::vector<Slot> slots) = 0;
  /// Calls the next operation of the group. False if there is none, or not now.
  virtual bool begin(GroupId id) = 0;
  virtual void hear_of_failure() {}
  /// For whom the operation waits; nobody if it is not under way.
  virtual std::vector<Slot> waiting_for(GroupId id, Sequence sequence) const = 0;

  virtual std::vector<GroupProgress> progress() const = 0;
  virtual Sequence begun(GroupId id) const = 0;
  virtual bool running(GroupId id) const = 0;
  virtual const View& view() const = 0;
  virtual bool frozen() const = 0;
  virtual bool misses_quorum() const = 0;
  /// What it has still to do besides its operations; empty: nothing.
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
  /// Of a map of groups by number.
  template <class Groups>
  static std::vector<GroupProgress> progress_of(const Groups& groups) {
    std::vector<GroupProgress> list;
    for (const auto& [id, group] : groups)
      list.push_back({id, group.slots, group.committed, group.begun});
    return list;
  }
};

}  // namespace tokenyard::collectives::simulated
