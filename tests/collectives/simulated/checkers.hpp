/// Checkers watch a job from outside and throw when a promise of the protocol is broken. Each knows
/// one promise and no implementation.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/interfaces/words.hpp"
#include "collectives/simulated/program.hpp"

namespace tokenyard::collectives::simulated {

class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Arguments>
void expect(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (!holds) throw Broken(fmt::format(text, std::forward<Arguments>(arguments)...));
}

inline std::string text(const View& view) {
  std::string members;
  for (const Member& member : view.members)
    members += fmt::format("{}{}.{}", members.empty() ? "" : " ", member.slot, member.incarnation);
  return fmt::format("epoch {} [{}]", view.epoch, members);
}

/// Agreement: an epoch begins alike for all its members, they are those of its view, and no process
/// skips an epoch or begins one twice.
class AgreementChecker {
 public:
  explicit AgreementChecker(const View& first) { views_[first.epoch] = first; }

  void installed(const Member& by, Epoch before, const Verdict& verdict) {
    const View& view = verdict.next;
    expect(view.contains(by), "agreement: {}.{} has installed {}", by.slot, by.incarnation,
           text(view));
    expect(before == 0 || view.epoch == before + 1, "agreement: slot {} went from epoch {} to {}",
           by.slot, before, view.epoch);
    const auto [known, is_new] = verdicts_.emplace(view.epoch, verdict);
    expect(known->second == verdict, "agreement: two endings of an epoch: slot {} has {}, not {}",
           by.slot, text(view), text(known->second.next));
    if (is_new) {
      expect(views_.contains(view.epoch - 1), "agreement: {} follows on nothing", text(view));
      views_[view.epoch] = view;
    }
  }
  const View& newest() const { return views_.rbegin()->second; }
  const std::map<Epoch, View>& views() const { return views_; }
  const std::map<Epoch, Verdict>& verdicts() const { return verdicts_; }

 private:
  std::map<Epoch, View> views_;
  std::map<Epoch, Verdict> verdicts_;
};

/// No minority goes on alone: more than half of an epoch's members are in the next one or have left
/// in good order; exactly half suffices only with a witness.
class MajorityChecker {
 public:
  explicit MajorityChecker(bool witness) : witness_(witness) {}

  void decided(const View& before, const Verdict& verdict) const {
    const size_t members = before.members.size();
    size_t agreeing = verdict.left.size();
    for (const Member& member : before.members) agreeing += verdict.next.contains(member);
    const bool half = members % 2 == 0 && agreeing == members / 2;
    expect(agreeing > members / 2 || (half && witness_),
           "majority: {} of {} have gone on to {} without the others", agreeing, members,
           text(verdict.next));
  }

 private:
  const bool witness_;
};

/// Commit or abort: a rank that survives an epoch has committed in it exactly what the verdict
/// says; a rank that left in good order, no more than that. Results are right for the members of
/// their epoch, inputs of aborted operations are unchanged, and a group's operations commit in
/// order.
class CommitChecker {
 public:
  void committed(const Member& by, GroupId group, Sequence sequence, const View& view,
                 const std::vector<Slot>& active, int64_t result) {
    int64_t expected = 0;
    for (const Slot slot : active) expected += contribution(*view.at(slot), group, sequence);
    expect(result == expected,
           "result: slot {} has committed operation {} of group {} with a wrong sum in {}", by.slot,
           sequence, group, text(view));
    Sequence& last = last_[{by, group}];
    expect(sequence == last + 1, "commit: slot {} committed operation {} of group {} after {}",
           by.slot, sequence, group, last);
    last = sequence;
    ++commits_;
  }
  void aborted(const Member& by, GroupId group, Sequence sequence, int64_t left) {
    expect(left == contribution(by, group, sequence),
           "abort: slot {}'s input of operation {} of group {} has changed", by.slot, sequence,
           group);
    ++aborts_;
  }
  /// The operation is done without a rank that had given up; only that rank may report this.
  void missed(const Member& by, GroupId group, Sequence sequence) {
    Sequence& last = last_[{by, group}];
    expect(sequence == last + 1, "commit: slot {} has missed operation {} of group {} after {}",
           by.slot, sequence, group, last);
    last = sequence;
  }
  void frozen(const Member& by, const std::vector<GroupProgress>& progress) {
    for (const GroupProgress& group : progress) frozen_[{by, group.group}] = group.committed;
  }
  /// A rank that left may have committed its last operation, and its caller relies on that.
  void decided(const View& before, const Verdict& verdict) const {
    for (const Slot slot : verdict.left) {
      const Member member = *before.at(slot);
      for (const GroupProgress& group : verdict.groups) {
        const auto frozen = frozen_.find({member, group.group});
        expect(frozen == frozen_.end() || frozen->second <= group.committed,
               "commit: slot {} left with operation {} of group {} done; the others go on after {}",
               slot, frozen->second, group.group, group.committed);
      }
    }
  }
  /// `progress`: the rank's own, just before it installs the verdict.
  void before_install(const Member& by, const std::vector<GroupProgress>& progress,
                      const Verdict& verdict) const {
    for (const GroupProgress& own : progress) {
      const auto frozen = frozen_.find({by, own.group});
      expect(frozen != frozen_.end() && frozen->second == own.committed,
             "commit: slot {} went on committing in group {} after it had promised to stop",
             by.slot, own.group);
      expect(own.committed <= number(verdict, own.group),
             "commit: slot {} has committed operation {} of group {}; the others go on after {}",
             by.slot, own.committed, own.group, number(verdict, own.group));
    }
  }
  void after_install(const Member& by, bool newcomer, const std::vector<GroupProgress>& progress,
                     const Verdict& verdict) {
    for (const GroupProgress& own : progress) {
      expect(own.committed == number(verdict, own.group),
             "commit: slot {} is at operation {} of group {}; the others are at {}", by.slot,
             own.committed, own.group, number(verdict, own.group));
      if (newcomer) last_[{by, own.group}] = own.committed;
    }
  }
  uint64_t commits() const { return commits_; }
  uint64_t aborts() const { return aborts_; }

 private:
  static Sequence number(const Verdict& verdict, GroupId id) {
    for (const GroupProgress& group : verdict.groups) {
      if (group.group == id) return group.committed;
    }
    throw Broken(fmt::format("commit: the verdict has forgotten group {}", id));
  }
  std::map<std::pair<Member, GroupId>, Sequence> last_, frozen_;
  uint64_t commits_ = 0, aborts_ = 0;
};

/// Only requested processes are admitted, and none twice.
class AdmissionChecker {
 public:
  explicit AdmissionChecker(const View& first) {
    for (const Member& member : first.members) admitted_.insert(member);
  }
  void wished(Slot slot) { wished_.insert(slot); }
  void decided(const View& before, const Verdict& verdict) {
    for (const Member& member : verdict.next.members) {
      if (before.contains(member)) continue;
      expect(wished_.contains(member.slot), "admission: nobody asked for slot {}", member.slot);
      expect(admitted_.insert(member).second, "admission: {}.{} was a member before", member.slot,
             member.incarnation);
    }
  }

 private:
  std::set<Slot> wished_;
  std::set<Member> admitted_;
};

/// A failure from before a recovering epoch does not surface in it: every reported deadline is that
/// of a rank whose deadline passed after the same recovery or a later one.
class NewsChecker {
 public:
  void timed_out(const Member& by, GroupId group, Sequence sequence, Epoch after, bool by_itself) {
    if (by_itself) {
      Epoch& latest = passed_[{group, sequence}];
      latest = std::max(latest, after);
      return;
    }
    const auto passed = passed_.find({group, sequence});
    expect(passed != passed_.end(),
           "news: nobody's deadline of operation {} of group {} has passed", sequence, group);
    expect(passed->second >= after,
           "news: slot {} is told in operation {} of group {}, which it called after epoch {} had "
           "mended, what failed after epoch {} had",
           by.slot, sequence, group, after, passed->second);
  }

 private:
  std::map<std::pair<GroupId, Sequence>, Epoch> passed_;
};

/// An epoch recovers when every member that goes on has asked for it since the last recovery;
/// newcomers need not ask until ranks are lost or an epoch recovers.
class RecoverChecker {
 public:
  void asked(const Member& by) { asked_.insert(by); }
  void decided(const View& before, const Verdict& verdict) {
    for (const Member& member : verdict.next.members) {
      if (!verdict.recovers || !before.contains(member)) continue;
      expect(asked_.erase(member) == 1 || fresh_.contains(member),
             "mending: slot {} has not asked for {}", member.slot, text(verdict.next));
    }
    if (verdict.recovers || !verdict.lost.empty()) fresh_.clear();
    for (const Member& member : verdict.next.members) {
      if (!before.contains(member)) fresh_.insert(member);
    }
  }

 private:
  std::set<Member> asked_, fresh_;
};

/// While ranks stall, ranks that wait like the others are not blamed.
class BlameChecker {
 public:
  /// `also_after`: checks just after a stall too, when other ranks are behind.
  explicit BlameChecker(bool also_after) : also_after_(also_after) {}

  /// Its program calls nothing before `until`.
  void stuck(const Member& member, Instant until) { until_[member.slot] = until; }
  /// Its program has put a failure behind it, and calls nothing until the others have too.
  void waits_to_recover(const Member& member) { waiting_.insert(member.slot); }
  void decided(const Verdict& verdict, Instant now) {
    const bool counts =
        also_after_ || std::any_of(until_.begin(), until_.end(),
                                   [&](const auto& entry) { return entry.second > now; });
    for (const Slot slot : verdict.stalled)
      expect(!counts || until_.contains(slot) || waiting_.contains(slot),
             "blame: slot {} has not stalled, but waited", slot);
    if (verdict.recovers) waiting_.clear();
  }

 private:
  const bool also_after_;
  std::map<Slot, Instant> until_;
  std::set<Slot> waiting_;
};

/// No rank is evicted without a reason. A lost rank was touched by a fault; or it cannot reach
/// another rank, possibly the leader (a leader cannot keep a rank that it does not hear, even if it
/// goes itself); or a touched rank, possibly the leader, stays or goes only now (it leaves, or has
/// stalled); or it left, yielded its slot to a newcomer, or stalled where that is a reason.
class InnocenceChecker {
 public:
  InnocenceChecker(bool stalled_may_go, bool may_yield_slot)
      : stalled_may_go_(stalled_may_go), may_yield_slot_(may_yield_slot) {}

  /// Permanent: the effects of a fault may show much later.
  void touched(const Member& member) { touched_.insert(member); }
  void touched(const Member& one, const Member& other) { parted_.insert(std::minmax(one, other)); }
  void leaves(const Member& member) { leaving_.insert(member); }
  void decided(const View& before, const Verdict& verdict) const {
    for (const Member& member : before.members) {
      const Slot slot = member.slot;
      if (verdict.next.contains(member) || touched_.contains(member)) continue;
      if (leaving_.contains(member) || (may_yield_slot_ && verdict.next.at(slot))) continue;
      if (stalled_may_go_ && among(verdict.stalled, slot)) continue;
      const bool out_of_touch =
          std::any_of(before.members.begin(), before.members.end(), [&](const Member& other) {
            const bool counts = verdict.next.contains(other) || among(verdict.left, other.slot) ||
                                among(verdict.stalled, other.slot);
            const bool parted = parted_.contains(std::minmax(member, other));
            return parted || (counts && touched_.contains(other));
          });
      expect(out_of_touch, "innocence: nothing has happened to slot {}, and {} begins without it",
             slot, text(verdict.next));
    }
  }

 private:
  static bool among(const std::vector<Slot>& slots, Slot slot) {
    return std::find(slots.begin(), slots.end(), slot) != slots.end();
  }
  const bool stalled_may_go_, may_yield_slot_;
  std::set<Member> touched_, leaving_;
  std::set<std::pair<Member, Member>> parted_;
};

}  // namespace tokenyard::collectives::simulated
