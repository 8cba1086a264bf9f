/// A megakernel's graphs count on every rank: none is made over a world with absent ones.
#pragma once

#include "fabric/world_access.hpp"

namespace tokenyard::megakernel {

/// Returns `world`. Throws InvalidArgument naming the first absent rank, alike on all ranks.
inline World& with_filled_slots(World& world) {
  for (uint32_t rank = 0; rank < world.size(); ++rank)
    if (!is_present(world, rank))
      throw InvalidArgument(
          "world", "a process in every slot for a megakernel; rebuild() leaves empty slots out",
          "an empty slot", rank);
  return world;
}

}  // namespace tokenyard::megakernel
