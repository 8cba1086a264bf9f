/// The leader's own ballot: the promises and votes it has received.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "membership/message.hpp"
#include "membership/roster.hpp"

namespace tokenyard::membership {

struct Candidacy {
  enum class Phase : uint8_t { idle, preparing, accepting };

  Phase phase = Phase::idle;
  Ballot ballot = {};
  Instant begun{}, asked{};            ///< start of the ballot; time of the last request
  std::map<Slot, Promise> promises{};  ///< of members, this one included
  Verdict proposal = {};
  std::set<Slot> votes{};
  /// The witness's part. `witness_asked`: when it was asked in this phase.
  std::optional<Instant> witness_asked{};
  std::optional<Promise> witness_promise{};
  bool witness_voted = false;
  /// Every member that answers has answered, and the ballot still cannot proceed.
  bool stuck = false;

  bool active() const { return phase != Phase::idle; }
  /// Returns whether a member that has promised asked to evict this one and does not hear it.
  bool is_abandoned(const Member& member) const {
    return std::ranges::any_of(promises, [&](const auto& entry) {
      const Promise& promise = entry.second;
      return std::ranges::count(promise.evicts, member) != 0 &&
             std::ranges::count(promise.suspected, member.slot) != 0;
    });
  }
  size_t promised() const { return promises.size() + (witness_promise ? 1 : 0); }
  size_t voted() const { return votes.size() + (witness_voted ? 1 : 0); }

  /// Returns the verdict accepted in the highest ballot, or null. It may be decided already, so the
  /// leader may propose nothing else.
  const Verdict* adopted() const {
    const Promise* highest = witness_promise ? &*witness_promise : nullptr;
    for (const auto& [slot, promise] : promises) {
      if (highest == nullptr || highest->accepted_in < promise.accepted_in) highest = &promise;
    }
    return highest != nullptr && highest->accepted_in ? &highest->accepted : nullptr;
  }
};

}  // namespace tokenyard::membership
