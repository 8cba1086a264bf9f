#pragma once

#include "membership/mutant.hpp"
#include "membership/view.hpp"

namespace tokenyard::membership {

/// How many acceptors must agree in an epoch, so that any two quorums have one in common: of n
/// members n / 2 + 1. With a witness as an (n + 1)th acceptor that still holds where n is even, so
/// half of the members and the witness will do; where n is odd it would help nobody.
struct Quorum {
  Quorum(const View& view, bool witness, Mutant mutant)
      : needed(static_cast<uint32_t>(view.members.size() / 2 + 1)),
        witness(witness && view.members.size() % 2 == 0) {
    if (mutant == Mutant::quorum_off_by_one && needed > 1) --needed;
  }
  uint32_t needed;
  bool witness;  ///< is an acceptor in this epoch
};

}  // namespace tokenyard::membership
