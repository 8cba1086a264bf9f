/// Who belongs to a job, and since when.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace tokenyard::membership {

/// A rank's place in the job. Stays with the rank whatever happens to others; a replacement takes
/// over the slot of whom it replaces.
using Slot = uint32_t;
inline constexpr uint32_t kSlotsMax = 4096;
/// Grows by one with every change of the membership. 0: no view yet.
using Epoch = uint64_t;
/// Of a group of ranks; the same on all its members. The world's is 0.
using GroupId = uint64_t;
/// Of an operation within its group, from 1, in the order of the calls.
using Sequence = uint64_t;
/// Since the start of the process, or of the simulation.
using Instant = std::chrono::nanoseconds;

/// A process in a slot. Two processes that ever held a slot differ in their incarnation.
struct Member {
  Slot slot = 0;
  uint64_t incarnation = 0;
  auto operator<=>(const Member&) const = default;
};

/// How far the end of a group is. Its ranks close it one by one; once all of them have, and all
/// know it, they forget it.
enum class GroupStage : uint8_t {
  open,
  closing,  ///< a rank has closed it
  closed,   ///< all ranks have closed it, as one of them knows
};

/// What a group has done, as one of its ranks knows. Also tells a newcomer which groups there are.
struct GroupProgress {
  GroupId group = 0;
  std::vector<Slot> slots = {};  ///< ascending; all, whether their ranks live or not
  Sequence committed = 0;        ///< last operation that is done for good
  Sequence begun = 0;            ///< last one that this rank has begun; not in a verdict
  uint64_t label = 0;            ///< of its name and ranks, alike on all processes; 0: the world
  GroupStage stage = GroupStage::open;
  bool operator==(const GroupProgress&) const = default;
};

/// The members of an epoch.
struct View {
  Epoch epoch = 0;
  uint32_t slots = 0;                ///< places in the job, taken or not
  std::vector<Member> members = {};  ///< ascending by slot
  bool operator==(const View&) const = default;

  std::optional<Member> at(Slot slot) const {
    for (const Member& member : members) {
      if (member.slot == slot) return member;
    }
    return std::nullopt;
  }
  bool contains(const Member& member) const { return at(member.slot) == member; }
};

/// Why somebody is thought to be gone.
enum class Suspicion : uint8_t {
  reset,    ///< its connection closed without a goodbye
  silence,  ///< no heartbeat for too long
};

/// Somebody has waited in an operation past its deadline for a member that lives. Invariant: it
/// falls with the operation, so nobody is blamed for one that is done when the epoch ends.
struct TimeoutReport {
  Slot slot = 0;
  GroupId group = 0;
  Sequence sequence = 0;
  bool operator==(const TimeoutReport&) const = default;
  /// By operation, then by slot.
  auto operator<=>(const TimeoutReport& other) const {
    return std::tie(group, sequence, slot) <=> std::tie(other.group, other.sequence, other.slot);
  }
};

/// How an epoch ends, the same for all members of the next one. Every operation up to `committed`
/// of its group is done; every other one that had begun has not happened.
struct Verdict {
  View next = {};
  std::vector<GroupProgress> groups = {};  ///< ascending by group
  std::vector<Slot> lost = {};             ///< members of the epoch that ends who are not in `next`
  std::vector<Slot> left = {};             ///< those of them who said goodbye
  /// Members that lived, but had not begun an operation in which others were waiting for them, be
  /// it through one another, past a deadline. In `next`, unless the job evicts stalled ranks.
  std::vector<Slot> stalled = {};
  /// Every member of `next` that was one before has asked for it: what has failed so far is behind
  /// all of them (Collectives::shrink).
  bool recovers = false;
  bool operator==(const Verdict&) const = default;
};

}  // namespace tokenyard::membership
