/// The members of a job, and the words of its epochs.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace tokenyard::membership {

/// A rank's place in the job. A rank keeps its slot whatever happens to others; a replacement takes
/// over the slot of the rank that it replaces.
using Slot = uint32_t;
inline constexpr uint32_t kSlotsMax = 4096;
/// Number of a view; grows by one with each change of the membership. 0: no view yet.
using Epoch = uint64_t;
/// Identifies a group of ranks, alike on all its members. The world's is 0.
using GroupId = uint64_t;
/// Number of an operation within its group, from 1, in the order of the calls.
using Sequence = uint64_t;
/// Time since the start of the process, or of the simulation.
using Instant = std::chrono::nanoseconds;

/// A process in a slot. Any two processes that ever held a slot differ in their incarnation.
struct Member {
  Slot slot = 0;
  uint64_t incarnation = 0;
  auto operator<=>(const Member&) const = default;
};

/// How far a group is closed. Its ranks close it one by one; they forget it once all have closed it
/// and all know.
enum class GroupStage : uint8_t {
  open,
  closing,  ///< a rank has closed it
  closed,   ///< all ranks have closed it, and at least one knows
};

/// A group's progress, as one of its ranks knows it. Also tells a newcomer which groups exist.
struct GroupProgress {
  GroupId group = 0;
  std::vector<Slot> slots = {};  ///< ascending; all ranks, alive or not
  Sequence committed = 0;        ///< last operation committed
  Sequence begun = 0;            ///< last operation that this rank has begun; unused in a verdict
  uint64_t label = 0;  ///< hash of its name and ranks, alike on all processes; 0: the world
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

/// Why a member is thought to be gone.
enum class Suspicion : uint8_t {
  reset,    ///< its connection closed without a goodbye
  silence,  ///< no heartbeat for too long
};

/// A rank has waited in an operation past its deadline for a member that lives. Invariant: the
/// report is void once the operation is done, so nobody is blamed for an operation that is done
/// when the epoch ends.
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

/// How an epoch ends, alike for all members of the next one. Every operation up to `committed` of
/// its group is done; every other operation that had begun is undone.
struct Verdict {
  View next = {};
  std::vector<GroupProgress> groups = {};  ///< ascending by group
  std::vector<Slot> lost = {};             ///< members of the ended epoch that are not in `next`
  std::vector<Slot> left = {};             ///< those of `lost` that said goodbye
  /// Members that live but had not begun an operation in which others waited for them, directly or
  /// through one another, past a deadline. In `next`, unless the job evicts stalled ranks.
  std::vector<Slot> stalled = {};
  /// Members of `next` that had asked to evict one of `lost`, or one that is excused itself: they
  /// waited for a lost one, so waits for them may have failed.
  std::vector<Slot> excused = {};
  /// Whether every member of `next` that is no newcomer has asked to recover: all failures so far
  /// are behind them (Collectives::shrink).
  bool recovers = false;
  bool operator==(const Verdict&) const = default;
};

}  // namespace tokenyard::membership
