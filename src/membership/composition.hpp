/// What a leader proposes: the verdict that follows from what the members have promised.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "membership/message.hpp"
#include "membership/mutant.hpp"
#include "membership/quorum.hpp"

namespace tokenyard::membership {

struct Evidence {
  const View& view;                         ///< the epoch that ends
  const Verdict& last;                      ///< how the one before has ended
  const std::map<Slot, Promise>& promises;  ///< of members of `view`
  const std::set<Slot>& leaving;            ///< members that have said goodbye
  Quorum quorum;
  bool witness_promised = false;
  bool evict_stalled = false;
  Mutant mutant = Mutant::none;
};

/// The next view holds
/// - members that have promised, since only those have frozen;
/// - without those that leave, that somebody wants out or, if so wished, that have stalled;
/// - with newcomers, for slots that somebody wants filled. A slot's old process makes way;
/// - and of all the rest those that hear one another: who lacks most of the others' signs of life
/// is
///   dropped until all are connected, of equals the higher slot.
/// Nothing, if those of the old view that would go on are too few: with those that leave in good
/// order they must be as many as a quorum, the witness counting for one of them.
std::optional<Verdict> compose(const Evidence& evidence);

}  // namespace tokenyard::membership
