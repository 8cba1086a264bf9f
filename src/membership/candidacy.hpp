/// A leader's own ballot: what has been promised to it and how many have voted.
#pragma once

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
  Instant begun{}, asked{};            ///< when the ballot began; when it asked the last time
  std::map<Slot, Promise> promises{};  ///< of members, this one too
  Verdict proposal = {};
  std::set<Slot> votes{};
  /// The witness's part; `witness_asked` is when, in this phase.
  std::optional<Instant> witness_asked{};
  std::optional<Promise> witness_promise{};
  bool witness_voted = false;
  /// All who answer have answered, and still it cannot go on.
  bool stuck = false;

  bool active() const { return phase != Phase::idle; }
  size_t promised() const { return promises.size() + (witness_promise ? 1 : 0); }
  size_t voted() const { return votes.size() + (witness_voted ? 1 : 0); }

  /// What had been accepted in the highest ballot, if anything: it may be decided already, so
  /// nothing else may be proposed.
  const Verdict* adopted() const {
    const Promise* highest = witness_promise ? &*witness_promise : nullptr;
    for (const auto& [slot, promise] : promises) {
      if (highest == nullptr || highest->accepted_in < promise.accepted_in) highest = &promise;
    }
    return highest != nullptr && highest->accepted_in ? &highest->accepted : nullptr;
  }
};

}  // namespace tokenyard::membership
