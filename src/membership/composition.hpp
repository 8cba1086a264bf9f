/// A leader's proposal: the verdict that follows from the members' promises.
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
  const Verdict& last;                      ///< how the epoch before it ended
  const std::map<Slot, Promise>& promises;  ///< from members of `view`
  const std::set<Slot>& leaving;            ///< members that said goodbye
  Quorum quorum;
  bool witness_promised = false;
  bool evict_stalled = false;
  Mutant mutant = Mutant::none;
};

/// Composes the next view:
/// - Only members that have promised stay, since only those have frozen.
/// - A member leaves if it said goodbye, if some member asked to evict it, or, with
///   `evict_stalled`, if it has stalled. Of members that ask to evict one another in a chain, only
///   the last leaves, since the others waited for it. In a circle, any may leave.
/// - Newcomers fill the slots that some member asked to fill. The slot's old process yields it.
/// - The remaining members hear one another: the member that misses, or is missed by, the most is
///   dropped until that holds; of equals, the higher slot.
/// Returns nothing if too few members of the old view would go on: those that stay and those that
/// leave in good order must form a quorum, in which the witness counts as one.
std::optional<Verdict> compose(const Evidence& evidence);

}  // namespace tokenyard::membership
