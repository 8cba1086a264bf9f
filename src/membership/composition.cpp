#include "membership/composition.hpp"

#include <algorithm>
#include <iterator>

#include "membership/invariant.hpp"

namespace tokenyard::membership {
namespace {

template <class Value>
bool among(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

using Promises = std::map<Slot, Promise>;

bool hear_each_other(const Promises& promises, Slot a, Slot b) {
  return !among(promises.at(a).suspected, b) && !among(promises.at(b).suspected, a);
}

/// Greedy: the largest such set is hard to find in general; with one or two cut links this is it.
std::set<Slot> connected(const Promises& promises, std::set<Slot> slots) {
  while (true) {
    std::optional<Slot> worst;
    size_t worst_missing = 0;
    for (const Slot slot : slots) {
      const auto missing =
          static_cast<size_t>(std::count_if(slots.begin(), slots.end(), [&](Slot other) {
            return other != slot && !hear_each_other(promises, slot, other);
          }));
      if (missing == 0 || missing < worst_missing) continue;
      worst = slot;
      worst_missing = missing;
    }
    if (!worst) return slots;
    slots.erase(*worst);
  }
}

const GroupProgress* in_group(const std::vector<GroupProgress>& progress, GroupId group) {
  for (const GroupProgress& one : progress) {
    if (one.group == group) return &one;
  }
  return nullptr;
}

bool intersect(const std::set<Slot>& some, const std::set<Slot>& others) {
  return std::any_of(some.begin(), some.end(), [&](Slot slot) { return others.contains(slot); });
}

/// Returns the members of `group` that have promised and have not begun its operation `sequence`.
std::set<Slot> late_for(const Promises& promises, const GroupProgress& group, Sequence sequence) {
  std::set<Slot> late;
  for (const Slot slot : group.slots) {
    const auto found = promises.find(slot);
    if (found == promises.end()) continue;
    const GroupProgress* const its = in_group(found->second.progress, group.group);
    if (its == nullptr || its->begun < sequence) late.insert(slot);
  }
  return late;
}

/// Returns the members that have not begun an operation which `one` has begun, unless it is done
/// when the epoch ends. `ended`: progress of the groups at that point. Skips operations that cannot
/// go on without a member of `waiting`.
std::set<Slot> awaited_by(const Promise& one, const std::set<Slot>& waiting,
                          const Promises& promises, const std::vector<GroupProgress>& ended) {
  std::set<Slot> awaited;
  for (const GroupProgress& own : one.progress) {
    const GroupProgress* const all = in_group(ended, own.group);
    if (all == nullptr || all->committed >= own.begun) continue;
    std::set<Slot> late = late_for(promises, own, own.begun);
    if (!intersect(late, waiting)) awaited.merge(late);
  }
  return awaited;
}

/// Returns whether the reporter still waits in the overdue operation: it has not given it up, and
/// the operation is not done when the epoch ends.
bool still_waits(const Promise& reporter, const TimeoutReport& overdue,
                 const std::vector<GroupProgress>& ended) {
  const GroupProgress* const own = in_group(reporter.progress, overdue.group);
  const GroupProgress* const all = in_group(ended, overdue.group);
  if (own == nullptr || own->begun < overdue.sequence) return false;
  return all != nullptr && all->committed < overdue.sequence;
}

/// An operation past its deadline: the ranks that have begun it and those that have not, reported
/// or not, since some ranks know only of their neighbours.
struct Overdue {
  std::set<Slot> waiting, late;
};

Overdue overdue(const Promises& promises, const GroupProgress& group, Sequence sequence) {
  Overdue parted{.waiting = {}, .late = late_for(promises, group, sequence)};
  for (const Slot slot : group.slots) {
    if (promises.contains(slot) && !parted.late.contains(slot)) parted.waiting.insert(slot);
  }
  return parted;
}

/// The reports whose senders still wait.
struct TimeoutReports {
  std::map<std::pair<GroupId, Sequence>, Overdue> operations;
  std::map<Slot, std::set<const Overdue*>> of;  ///< by sender
  std::set<Slot> named;
};

/// Ignores what a sender has begun elsewhere: that is no reason to blame anybody, since its
/// deadline has not passed.
TimeoutReports standing(const Promises& promises, const std::vector<GroupProgress>& ended) {
  TimeoutReports all;
  for (const auto& [sender, promise] : promises) {
    for (const TimeoutReport& timeout_report : promise.timeout_reports) {
      const auto& [slot, group, sequence] = timeout_report;
      if (!promises.contains(slot) || !still_waits(promise, timeout_report, ended)) continue;
      const auto [operation, is_new] = all.operations.try_emplace({group, sequence});
      if (is_new)
        operation->second = overdue(promises, *in_group(promise.progress, group), sequence);
      all.of[sender].insert(&operation->second);
      all.named.insert(slot);
    }
  }
  return all;
}

/// Returns the ranks that an overdue operation waits for in the end. A rank that is late for it
/// because it waits elsewhere is followed to the ranks it waits for, and so on, until some wait for
/// nobody.
///
/// Waiting for a rank that itself waits for this operation is no excuse: a rank that has just come
/// out of a stall may have begun first what all others begin a moment later. A rank that has
/// reported others is not followed: it waits in the overdue operation, by which those others are
/// judged, and its other operations may be on time.
std::set<Slot> holding_up(Overdue operation, const TimeoutReports& timeout_reports,
                          const Promises& promises, const std::vector<GroupProgress>& ended) {
  auto& [waiting, late] = operation;
  while (!late.empty()) {
    std::set<Slot> idle, next, excused;
    for (const Slot slot : late) {
      if (const auto own = timeout_reports.of.find(slot); own != timeout_reports.of.end()) {
        const bool in_turn =
            std::all_of(own->second.begin(), own->second.end(),
                        [&](const Overdue* one) { return intersect(one->late, waiting); });
        if (in_turn) idle.insert(slot);
        continue;
      }
      std::set<Slot> awaited = awaited_by(promises.at(slot), waiting, promises, ended);
      (awaited.empty() ? idle : excused).insert(slot);
      next.merge(awaited);
    }
    if (!idle.empty()) return idle;
    waiting.merge(excused);
    late = std::move(next);
  }
  return {};
}

/// Returns the ranks that kept others waiting past a deadline. If none is found (all have begun the
/// overdue operations, or wait for one another in a circle): the reported ranks that reported
/// nobody or, if there are none, all reported ranks.
std::set<Slot> stalled(const Promises& promises, const std::vector<GroupProgress>& ended,
                       Mutant mutant) {
  const TimeoutReports timeout_reports = standing(promises, ended);
  if (mutant == Mutant::stalls_blamed_on_all) return timeout_reports.named;
  std::set<Slot> blamed, quiet;
  for (const auto& [id, operation] : timeout_reports.operations)
    blamed.merge(holding_up(operation, timeout_reports, promises, ended));
  if (!blamed.empty()) return blamed;
  for (const Slot slot : timeout_reports.named) {
    if (!timeout_reports.of.contains(slot)) quiet.insert(slot);
  }
  return quiet.empty() ? timeout_reports.named : quiet;
}

/// Returns one newcomer per slot that some member asked to fill.
std::map<Slot, Member> admitted(const Evidence& evidence) {
  std::set<Slot> wished;
  std::set<Member> waiting;
  for (const auto& [slot, promise] : evidence.promises) {
    wished.insert(promise.admits.begin(), promise.admits.end());
    waiting.insert(promise.waiting.begin(), promise.waiting.end());
  }
  std::map<Slot, Member> members;
  for (const Member& newcomer : waiting) {
    const bool welcome =
        wished.contains(newcomer.slot) || evidence.mutant == Mutant::admitted_unasked;
    if (welcome && !evidence.view.contains(newcomer)) members[newcomer.slot] = newcomer;
  }
  return members;
}

/// Returns the members that this one asked to evict.
std::set<Slot> named_by(const Evidence& evidence, Slot slot) {
  std::set<Slot> named;
  const auto promise = evidence.promises.find(slot);
  if (promise == evidence.promises.end()) return named;
  for (const Member& member : promise->second.evicts) {
    if (evidence.view.contains(member)) named.insert(member.slot);
  }
  return named;
}

std::set<Slot> named_by_any(const Evidence& evidence) {
  std::set<Slot> named;
  for (const auto& [slot, promise] : evidence.promises) named.merge(named_by(evidence, slot));
  return named;
}

/// Returns those of `members`, not of `ends`, that asked to evict one of `ends` or one that is
/// returned.
std::set<Slot> leading_to(const Evidence& evidence, const std::set<Slot>& members,
                          std::set<Slot> ends) {
  std::set<Slot> added;
  for (bool more = true; more;) {
    more = false;
    for (const Slot slot : members) {
      if (ends.contains(slot) || !intersect(named_by(evidence, slot), ends)) continue;
      ends.insert(slot);
      added.insert(slot);
      more = true;
    }
  }
  return added;
}

/// Returns the members that some member asked to evict, without those that waited, directly or
/// through one another, for one that asked to evict nobody. A wait that fails names a rank that has
/// not come, and that rank may be healthy and wait for a dead one, a step behind.
std::set<Slot> evicted(const Evidence& evidence) {
  std::set<Slot> named = named_by_any(evidence);
  std::set<Slot> ends;
  for (const Slot slot : named) {
    if (named_by(evidence, slot).empty()) ends.insert(slot);
  }
  if (evidence.mutant == Mutant::waiting_members_evicted) return named;
  for (const Slot slot : leading_to(evidence, named, ends)) named.erase(slot);
  return named;
}

std::vector<Slot> excused(const Evidence& evidence, const std::set<Slot>& kept,
                          const std::vector<Slot>& lost) {
  const std::set<Slot> slots = leading_to(evidence, kept, {lost.begin(), lost.end()});
  return {slots.begin(), slots.end()};
}

/// Returns the union: the world's group grows with the job, and some ranks may not know yet.
std::vector<Slot> united(const std::vector<Slot>& some, const std::vector<Slot>& others) {
  std::vector<Slot> slots;
  std::set_union(some.begin(), some.end(), others.begin(), others.end(), std::back_inserter(slots));
  return slots;
}

/// Merges the groups' progress. An operation that one promise has committed has complete data on
/// its whole group, so it commits everywhere. A group that none of the promising members may know
/// keeps the state of the last epoch.
std::vector<GroupProgress> merged(const Evidence& evidence) {
  std::map<GroupId, GroupProgress> groups;
  for (const GroupProgress& group : evidence.last.groups) {
    const bool published = std::any_of(group.slots.begin(), group.slots.end(),
                                       [&](Slot slot) { return evidence.promises.contains(slot); });
    if (!published) groups[group.group] = group;
  }
  for (const auto& [slot, promise] : evidence.promises) {
    for (const GroupProgress& progress : promise.progress) {
      const auto [found, is_new] = groups.emplace(progress.group, progress);
      GroupProgress& group = found->second;
      if (group.slots != progress.slots) group.slots = united(group.slots, progress.slots);
      group.begun = 0;
      group.stage = std::max(group.stage, progress.stage);
      group.committed = evidence.mutant == Mutant::committed_is_least
                            ? std::min(group.committed, progress.committed)
                            : std::max(group.committed, progress.committed);
    }
  }
  std::vector<GroupProgress> list;
  for (auto& [id, group] : groups) list.push_back(std::move(group));
  return list;
}

bool enough(const Evidence& evidence, const std::set<Slot>& kept) {
  const size_t agreeing =
      kept.size() + evidence.leaving.size() + (evidence.witness_promised ? 1 : 0);
  return agreeing >= evidence.quorum.needed;
}

/// Ignores newcomers: they have nothing behind them.
bool recovers(const Evidence& evidence, const View& next) {
  bool all = true, any = false;
  for (const Member& member : next.members) {
    const auto promise = evidence.promises.find(member.slot);
    if (promise == evidence.promises.end() || !evidence.view.contains(member)) continue;
    all = all && promise->second.recovers;
    any = any || promise->second.recovers;
  }
  return evidence.mutant == Mutant::recovered_by_some ? any : all && any;
}

std::set<Slot> without(std::set<Slot> slots, const std::set<Slot>& some) {
  for (const Slot slot : some) slots.erase(slot);
  return slots;
}

}  // namespace

std::optional<Verdict> compose(const Evidence& evidence) {
  std::set<Slot> kept;
  for (const auto& [slot, promise] : evidence.promises) {
    invariant(evidence.view.at(slot).has_value(), "a process that is no member has promised");
    if (!evidence.leaving.contains(slot)) kept.insert(slot);
  }
  const auto in_touch = [&](const std::set<Slot>& slots) {
    const bool published = evidence.mutant != Mutant::suspicions_not_told;
    return published ? connected(evidence.promises, slots) : slots;
  };
  // Leaving members count towards the quorum, but the job goes on only if somebody stays.
  const auto goes_on = [&](const std::set<Slot>& slots) {
    return !slots.empty() && enough(evidence, slots);
  };
  // Members that go anyway go first; otherwise one might take along a member that does not hear it.
  const auto part_with = [&](const std::set<Slot>& some) {
    const std::set<Slot> others = without(kept, some);
    if (goes_on(in_touch(others))) kept = others;
  };
  std::vector<GroupProgress> ended = merged(evidence);
  const std::set<Slot> blamed = stalled(evidence.promises, ended, evidence.mutant);
  if (evidence.evict_stalled) part_with(blamed);
  for (const Slot slot : evicted(evidence)) part_with({slot});
  std::map<Slot, Member> newcomers = admitted(evidence);
  for (const auto& [slot, newcomer] : newcomers) part_with({slot});
  kept = in_touch(kept);
  std::erase_if(newcomers, [&](const auto& entry) { return kept.contains(entry.first); });
  if (!goes_on(kept)) return std::nullopt;

  Verdict verdict;
  View& next = verdict.next;
  next.epoch = evidence.view.epoch + 1;
  next.slots = evidence.view.slots;
  for (const Member& member : evidence.view.members) {
    const bool stays =
        kept.contains(member.slot) || (evidence.mutant == Mutant::unpromised_members_kept &&
                                       !evidence.promises.contains(member.slot));
    if (stays && !newcomers.contains(member.slot)) {
      next.members.push_back(member);
    } else {
      verdict.lost.push_back(member.slot);
      if (evidence.leaving.contains(member.slot)) verdict.left.push_back(member.slot);
    }
  }
  for (const auto& [slot, newcomer] : newcomers) {
    next.members.push_back(newcomer);
    next.slots = std::max(next.slots, slot + 1);
  }
  std::sort(next.members.begin(), next.members.end());
  verdict.groups = std::move(ended);
  verdict.stalled.assign(blamed.begin(), blamed.end());
  verdict.excused = excused(evidence, kept, verdict.lost);
  verdict.recovers = recovers(evidence, next);
  return verdict;
}

}  // namespace tokenyard::membership
