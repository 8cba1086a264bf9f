/// Settings that make one run's memory adversarial. Each run draws all of them from its seed; it
/// usually turns some faults off and others up, because a little of everything hides bugs.
#pragma once

#include <cstdint>
#include <string>

#include "simulation/random.hpp"

namespace tokenyard::simulation {

/// The time at which weak stores and bulk copies reach memory, unless a release forces them.
enum class Delivery : uint8_t {
  uniform,       ///< at random, in random order
  newest_first,  ///< only when every thread waits, and then the newest
  random_idle,   ///< only when every thread waits, and then any
  clogged,       ///< as uniform, but one path between two ranks moves only when every thread waits
};

struct Policy {
  Delivery delivery = Delivery::uniform;
  uint32_t land_per_1024 = 100;   ///< chance at each step that a late store lands
  uint32_t stale_per_1024 = 300;  ///< chance that a strong load looks for an older value
  bool oldest_first = false;      ///< it then takes the oldest value allowed, else any
  uint32_t stale_steps = 2000;    ///< steps after which every thread sees a store
  uint32_t insert_per_1024 =
      100;                     ///< chance that a store takes an earlier place in coherence order
  uint32_t tear_per_1024 = 0;  ///< chance that a 16-byte weak store lands in four pieces
  uint32_t clogged_from = 0, clogged_to = 0;

  static Policy draw(Random& random, uint32_t ranks);
  std::string text() const;
};

}  // namespace tokenyard::simulation
