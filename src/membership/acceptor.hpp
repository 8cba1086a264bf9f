#pragma once

#include <optional>

#include "membership/message.hpp"
#include "membership/mutant.hpp"

namespace tokenyard::membership {

/// One acceptor of an epoch's consensus (Lamport, "Paxos Made Simple"): a member, or the witness.
/// Invariant: `accepted_in <= promised`, and neither ever decreases. So once a ballot is promised,
/// no lower ballot can gain this vote.
struct Acceptor {
  Ballot promised = {};
  std::optional<Ballot> accepted_in = {};  ///< ballot in which `accepted` was accepted
  Verdict accepted = {};
  bool operator==(const Acceptor&) const = default;

  /// Both return false if a higher ballot has been promised. A repeated request succeeds again.
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
