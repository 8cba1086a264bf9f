/// The allocation of clock slots.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "simulation/actor.hpp"

namespace tokenyard::simulation {

/// Reuses a slot only if the new owner's launcher knows everything that the former owner did. Then
/// knowledge of the slot covers both owners, and clocks are only as long as the largest number of
/// threads alive at once.
class Slots {
 public:
  struct Fresh {
    Slot slot;
    Epoch first;  ///< the new owner's first epoch
  };

  Fresh take(uint32_t rank, const Clock& known) {
    if (rank < free_.size()) {
      std::vector<Freed>& freed = free_[rank];
      if (!freed.empty() && known.of(freed.back().slot) >= freed.back().last) {
        const Freed reused = freed.back();
        freed.pop_back();
        return {reused.slot, reused.last + 1};
      }
    }
    return {next_++, 1};
  }
  void give_back(uint32_t rank, Slot slot, Epoch last) {
    if (rank >= free_.size()) free_.resize(rank + 1);
    free_[rank].push_back({slot, last});
  }

 private:
  struct Freed {
    Slot slot;
    Epoch last;
  };
  std::vector<std::vector<Freed>> free_;  ///< by rank
  Slot next_ = 0;
};

}  // namespace tokenyard::simulation
