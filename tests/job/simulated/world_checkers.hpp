/// Checkers of worlds and calls: each watches all processes from outside and knows one promise.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "collectives/simulated/checkers.hpp"

namespace tokenyard::job_test {

using collectives::simulated::expect;
using membership::Epoch;
using membership::Member;
using membership::Slot;
using membership::View;

/// Of the members that stay, all have the same world in the end, or none: worlds of one generation
/// have the same members, those of an epoch that its maker has seen. A process that is out already
/// may have one that nobody else gets: it may hear that a link has ended before it hears why.
class WorldChecker {
 public:
  using Generation = uint32_t;

  /// `newest`: of the job; `view`: of the world. Returns whether it is the first that has this
  /// world.
  bool made(const Member& by, Generation generation, const std::vector<Slot>& slots,
            const View& view, const View& newest) {
    std::vector<Slot> members;
    for (const Member& member : view.members) members.push_back(member.slot);
    expect(view.contains(by) && members == slots,
           "worlds: slot {} has a world of generation {} that is not of {}", by.slot, generation,
           collectives::simulated::text(view));
    const Key key(generation, view.members);
    for (const auto& [other, made_by] : worlds_) {
      if (other == key || other.first != generation) continue;
      // Processes that never meet may count alike.
      for (const Member& member : view.members)
        expect(std::ranges::count(other.second, member) == 0,
               "worlds: slot {} has a world of generation {} of {}, and slot {} one of others",
               by.slot, generation, collectives::simulated::text(view), made_by.all.begin()->slot);
    }
    const bool is_first = !worlds_.contains(key);
    Makers& makers = worlds_[key];
    makers.all.insert(by);
    makers.have_member |= newest.contains(by);
    return is_first;
  }
  /// Nothing has ever happened to these processes: they have all worlds that others have of them.
  void at_the_end(const std::set<Member>& untouched) const {
    for (const auto& [key, made_by] : worlds_) {
      for (const Member& member : key.second)
        expect(!made_by.have_member || made_by.all.contains(member) || !untouched.contains(member),
               "worlds: slot {} lacks the world of generation {}, which slot {} has", member.slot,
               key.first, made_by.all.begin()->slot);
    }
  }
  size_t worlds() const { return worlds_.size(); }

 private:
  using Key = std::pair<Generation, std::vector<Member>>;
  struct Makers {
    std::set<Member> all;
    bool have_member = false;  ///< whether one of them was a member when it had made the world
  };
  std::map<Key, Makers> worlds_;
};

/// All survivors count the same finished calls: in a new world they are one call apart at most, and
/// go on from the same one.
class CallChecker {
 public:
  void finished(const Member& by, uint32_t call) {
    uint32_t& count = finished_[by];
    expect(call == count, "calls: slot {} has finished call {} after {} calls", by.slot, call,
           count);
    ++count;
  }
  /// The process goes on in a new world from `call`; `counts` are those of all members that have
  /// any.
  void goes_on(const Member& by, uint32_t generation, const std::vector<Member>& members,
               uint32_t call, const std::vector<uint32_t>& counts) {
    for (const uint32_t count : counts)
      expect(count == call || count == call + 1,
             "calls: a member has finished {} calls; slot {} goes on from {}", count, by.slot,
             call);
    const auto [first, is_first] = began_.emplace(std::pair(generation, members), call);
    expect(first->second == call,
           "calls: slot {} goes on from call {} in the world of generation {}; others from {}",
           by.slot, call, generation, first->second);
    const auto before = finished_.find(by);
    expect(before == finished_.end() || before->second <= call + 1,
           "calls: slot {} has finished {} calls and goes on from {}", by.slot,
           before == finished_.end() ? 0 : before->second, call);
    finished_[by] = call;
  }

 private:
  std::map<Member, uint32_t> finished_;
  /// By generation and members.
  std::map<std::pair<uint32_t, std::vector<Member>>, uint32_t> began_;
};

/// A process that has been told that the others go on without it goes on with nothing.
class FenceChecker {
 public:
  void told(const Member& member) { told_.insert(member); }
  void does(const Member& member, const char* what) const {
    expect(!told_.contains(member), "fence: slot {} {} although it knows that it is out",
           member.slot, what);
  }

 private:
  std::set<Member> told_;
};

}  // namespace tokenyard::job_test
