/// Slots of a world without a process, among at most 64, for kernels that number the other ranks,
/// the members, without gaps.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

struct EmptySlots {
  static constexpr uint32_t kSlotsMax = 64;

  uint64_t bits = 0;

  /// Returns the slot of a member, counted from 0 in the order of slots.
  TOKENYARD_HOST_DEVICE uint32_t slot_of(uint32_t member) const {
    if (bits == 0) [[likely]]
      return member;
    uint32_t slot = 0;
    for (uint32_t left = member + 1; slot < kSlotsMax; ++slot)
      if ((bits >> slot & 1) == 0 && --left == 0) break;
    return slot;
  }
};

}  // namespace tokenyard
