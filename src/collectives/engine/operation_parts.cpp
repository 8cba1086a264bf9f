// Lists with one part per rank when ranks are lost.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "collectives/engine/operation_queue.hpp"

namespace tokenyard::collectives {

/// Records the ranks that took no part, and zeroes their parts of the results.
void OperationQueue::settle_results(Operation& operation) {
  if (last_committed_ != team_members_) last_committed_ = team_members_;
  if (team_members_.size() == identity_.slots.size()) return;
  for (uint32_t rank = 0; rank < identity_.slots.size(); ++rank) {
    const bool took_part =
        std::any_of(team_members_.begin(), team_members_.end(),
                    [&](const Member& member) { return member.slot == identity_.slots[rank]; });
    if (!took_part) operation.missing.push_back(rank);
  }
  if (!operation.placed) operation.call.clear_places(identity_.self, operation.missing);
}

/// With Places::compact: spreads the call's parts over the active ranks, or refuses the call,
/// together with the other ranks.
void OperationQueue::place_parts(Operation& operation) {
  const std::vector<uint32_t> active = identity_.active_ranks(context_.view);
  operation.placed.reset();
  bool fits = operation.call.has_parts_for(active.size());
  if (fits) {
    operation.placed = operation.call.spread(active, identity_.slots.size());
    fits = operation.placed->own_part_fits(identity_.self);
  }
  if (fits) return;
  const Signature& signature = operation.call.signature;
  talk_->begin(committed_ + 1, signature);
  refuse({.one = identity_.self,
          .other = identity_.self,
          .one_called = signature,
          .other_called = signature,
          .one_bytes = operation.call.parts()});
}

std::string OperationQueue::unplaced_parts() const {
  std::vector<uint32_t> there, lost;
  for (uint32_t rank = 0; rank < identity_.slots.size(); ++rank) {
    const bool takes_part =
        std::any_of(team_members_.begin(), team_members_.end(),
                    [&](const Member& member) { return member.slot == identity_.slots[rank]; });
    (takes_part ? there : lost).push_back(rank);
  }
  return fmt::format("{} parts, one for each of ranks {}, this rank's as long as its own data{}{}",
                     there.size(), fmt::join(there, ", "),
                     lost.empty() ? "" : "; lost ranks: ", fmt::join(lost, ", "));
}

}  // namespace tokenyard::collectives
