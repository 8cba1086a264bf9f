/// The present ranks of a world, as kernels number them: members, without gaps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/empty_slots.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::device_collectives {

struct Members {
  std::vector<uint32_t> slots;  ///< of the members, ascending
  uint32_t self = 0;            ///< this rank's member
  EmptySlots empty;

  /// Throws Unsupported if ranks are absent from a world of very many.
  static Members of(const World& world);

  uint32_t count() const { return static_cast<uint32_t>(slots.size()); }
  /// Returns the member in a slot; none if it is empty.
  std::optional<uint32_t> at(uint32_t slot) const;
};

}  // namespace tokenyard::device_collectives
