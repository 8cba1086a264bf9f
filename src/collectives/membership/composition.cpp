#include "collectives/membership/composition.hpp"

#include <algorithm>
#include <iterator>

#include "collectives/membership/invariant.hpp"

namespace tokenyard::collectives {
namespace {

template <class Value>
bool among(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

using Promises = std::map<Slot, Promise>;

bool hear_each_other(const Promises& promises, Slot a, Slot b) {
  return !among(promises.at(a).suspected, b) && !among(promises.at(b).suspected, a);
}

/// Greedy: the largest such set is hard to find in general, and with one or two cuts this is it.
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

/// Whether `slot` has not begun what the accuser waits in, and they wait in nothing together.
bool is_behind(const Promise& accuser, Slot slot, const Promise& other) {
  bool behind = false;
  for (const GroupProgress& own : accuser.progress) {
    if (own.begun <= own.committed || !among(own.slots, slot)) continue;
    const GroupProgress* const its = in_group(other.progress, own.group);
    if (its != nullptr && its->begun >= own.begun) return false;
    behind = true;
  }
  return behind;
}

/// Whether the accuser still waits in the operation that was overdue: it has not given it up, and
/// it is not done when the epoch ends. `ended`: how far groups are then.
bool still_waits(const Promise& accuser, const Accusation& overdue,
                 const std::vector<GroupProgress>& ended) {
  const GroupProgress* const own = in_group(accuser.progress, overdue.group);
  const GroupProgress* const all = in_group(ended, overdue.group);
  if (own == nullptr || own->begun < overdue.sequence) return false;
  return all != nullptr && all->committed < overdue.sequence;
}

/// Whom each of those that have promised has waited for past a deadline, and still does. What it
/// has begun elsewhere is no reason to accuse anybody: its deadline has not passed.
std::map<Slot, std::set<Slot>> accusations(const Promises& promises,
                                           const std::vector<GroupProgress>& ended) {
  std::map<Slot, std::set<Slot>> named_by;
  for (const auto& [accuser, promise] : promises) {
    for (const Accusation& accusation : promise.accusations) {
      if (promises.contains(accusation.slot) && still_waits(promise, accusation, ended))
        named_by[accuser].insert(accusation.slot);
    }
  }
  return named_by;
}

/// Who has kept others waiting, of those that they name: whoever is behind. If none of them is, the
/// ones that were named wait as well, for somebody whom they have not named yet: whoever is behind
/// of all. If nobody is, those that name nobody themselves; if all do, all.
std::set<Slot> stalled(const Promises& promises, const std::vector<GroupProgress>& ended,
                       Mutant mutant) {
  const std::map<Slot, std::set<Slot>> named_by = accusations(promises, ended);
  std::set<Slot> named, named_behind, behind, quiet;
  for (const auto& [accuser, accused] : named_by) {
    named.insert(accused.begin(), accused.end());
    for (const auto& [slot, other] : promises) {
      if (!is_behind(promises.at(accuser), slot, other)) continue;
      behind.insert(slot);
      if (accused.contains(slot)) named_behind.insert(slot);
    }
  }
  for (const Slot slot : named) {
    if (!named_by.contains(slot)) quiet.insert(slot);
  }
  if (mutant == Mutant::stalls_blamed_on_all) return named;
  for (const std::set<Slot>* slots : {&named_behind, &behind, &quiet}) {
    if (!slots->empty()) return *slots;
  }
  return named;
}

/// One newcomer for each slot that somebody wants filled.
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

/// The world's group grows with the job, and not everybody may know yet.
std::vector<Slot> united(const std::vector<Slot>& some, const std::vector<Slot>& others) {
  std::vector<Slot> slots;
  std::set_union(some.begin(), some.end(), others.begin(), others.end(), std::back_inserter(slots));
  return slots;
}

/// Committed by one that has promised: then its data are complete on all of the group, and it is
/// committed on all. A group that none of the promises may know of is as the last epoch left it.
std::vector<GroupProgress> merged(const Evidence& evidence) {
  std::map<GroupId, GroupProgress> groups;
  for (const GroupProgress& group : evidence.last.groups) {
    const bool told = std::any_of(group.slots.begin(), group.slots.end(),
                                  [&](Slot slot) { return evidence.promises.contains(slot); });
    if (!told) groups[group.group] = group;
  }
  for (const auto& [slot, promise] : evidence.promises) {
    for (const GroupProgress& progress : promise.progress) {
      const auto [found, is_new] = groups.emplace(progress.group, progress);
      GroupProgress& group = found->second;
      if (group.slots != progress.slots) group.slots = united(group.slots, progress.slots);
      group.begun = 0;
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

/// Newcomers have nothing behind them.
bool mends(const Evidence& evidence, const View& next) {
  bool all = true, any = false;
  for (const Member& member : next.members) {
    const auto promise = evidence.promises.find(member.slot);
    if (promise == evidence.promises.end() || !evidence.view.contains(member)) continue;
    all = all && promise->second.mends;
    any = any || promise->second.mends;
  }
  return evidence.mutant == Mutant::mended_by_some ? any : all && any;
}

std::set<Slot> without(std::set<Slot> slots, const std::set<Slot>& some) {
  for (const Slot slot : some) slots.erase(slot);
  return slots;
}

}  // namespace

std::optional<Verdict> compose(const Evidence& evidence) {
  std::set<Slot> kept;
  for (const auto& [slot, promise] : evidence.promises) {
    invariant(evidence.view.at(slot).has_value(), "one who is no member has promised");
    if (!evidence.leaving.contains(slot)) kept.insert(slot);
  }
  const auto in_touch = [&](const std::set<Slot>& slots) {
    const bool told = evidence.mutant != Mutant::suspicions_not_told;
    return told ? connected(evidence.promises, slots) : slots;
  };
  // Those who leave may be as many as a quorum, but the job goes on only with somebody who stays.
  const auto goes_on = [&](const std::set<Slot>& slots) {
    return !slots.empty() && enough(evidence, slots);
  };
  // Whoever goes anyway goes first, or it might take one along that does not hear it.
  const auto part_with = [&](const std::set<Slot>& some) {
    const std::set<Slot> others = without(kept, some);
    if (goes_on(in_touch(others))) kept = others;
  };
  std::vector<GroupProgress> ended = merged(evidence);
  const std::set<Slot> blamed = stalled(evidence.promises, ended, evidence.mutant);
  if (evidence.evict_stalled) part_with(blamed);
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
  verdict.mends = mends(evidence, next);
  return verdict;
}

}  // namespace tokenyard::collectives
