/// Promises of the ranks of an epoch, and the verdict that follows from them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "membership/composition.hpp"

namespace tokenyard::membership {

/// Ranks in epoch 1, each of which has promised and begun `begun[slot]` operations.
struct Promised {
  explicit Promised(const std::vector<Sequence>& begun) {
    view.epoch = 1;
    view.slots = static_cast<uint32_t>(begun.size());
    std::vector<Slot> world;
    for (Slot slot = 0; slot < view.slots; ++slot) world.push_back(slot);
    for (const Slot slot : world) {
      view.members.push_back({slot, slot + 1});
      promises[slot].progress = {{0, world, 0, begun[slot]}};
    }
  }
  std::optional<Verdict> compose(bool evict_stalled, Mutant mutant = Mutant::none) const {
    return membership::compose({.view = view,
                                .last = last,
                                .promises = promises,
                                .leaving = leaving,
                                .quorum = Quorum(view, false, Mutant::none),
                                .evict_stalled = evict_stalled,
                                .mutant = mutant});
  }
  void asks_to_evict(Slot slot, Slot named) { promises[slot].evicts.push_back(*view.at(named)); }

  View view;
  Verdict last;
  std::map<Slot, Promise> promises;
  std::set<Slot> leaving;
};

inline std::vector<Slot> slots_of(const View& view) {
  std::vector<Slot> slots;
  for (const Member& member : view.members) slots.push_back(member.slot);
  return slots;
}

}  // namespace tokenyard::membership
