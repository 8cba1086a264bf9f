#pragma once

#include "membership/mutant.hpp"
#include "membership/view.hpp"

namespace tokenyard::membership {

/// How many acceptors must agree in an epoch, so that any two quorums overlap: n / 2 + 1 of n
/// members. If n is even, the witness is an (n + 1)th acceptor and the same number still overlaps,
/// so half of the members and the witness suffice. If n is odd, a witness would help nobody.
struct Quorum {
  Quorum(const View& view, bool witness, Mutant mutant)
      : needed(static_cast<uint32_t>(view.members.size() / 2 + 1)),
        witness(witness && view.members.size() % 2 == 0) {
    if (mutant == Mutant::quorum_off_by_one && needed > 1) --needed;
  }
  uint32_t needed;
  bool witness;  ///< the witness is an acceptor in this epoch
};

}  // namespace tokenyard::membership
