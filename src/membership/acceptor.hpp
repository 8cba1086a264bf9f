#pragma once

#include <optional>

#include "membership/message.hpp"
#include "membership/mutant.hpp"

namespace tokenyard::membership {

/// One vote of an epoch's consensus (Lamport, "Paxos Made Simple"): a member's, or the witness's.
/// Invariant: `accepted_in <= promised`, and neither ever decreases.
struct Acceptor {
  Ballot promised = {};
  std::optional<Ballot> accepted_in = {};  ///< with `accepted`
  Verdict accepted = {};
  bool operator==(const Acceptor&) const = default;

  /// Both are refused (false) if a higher ballot has been promised; said again they are granted
  /// again.
  bool prepare(Ballot ballot) {
    if (ballot < promised) return false;
    promised = ballot;
    return true;
  }
  bool accept(Ballot ballot, const Verdict& verdict, Mutant mutant) {
    if (ballot < promised && mutant != Mutant::ballot_not_compared) return false;
    promised = ballot;
    accepted_in = ballot;
    accepted = verdict;
    return true;
  }
};

}  // namespace tokenyard::membership
