/// Where a seed's exchanges begin to count their calls.
#pragma once

#include <iterator>

#include "simulation/suite.hpp"

namespace tokenyard::test {

/// Returns the epoch before the first call: often one so near the end of the numbers, of their
/// signed half or of those in a low-latency stamp of ids that a few calls pass it.
inline uint32_t draw_epoch_before(simulation::SeedRun& run) {
  constexpr uint32_t kEnds[] = {0xffffffff, 0x7fffffff, 0x1fffffff};
  constexpr uint32_t kCallsBefore = 4;
  simulation::Random random = run.random.split();
  if (!random.chance(384)) return 0;
  const uint32_t end = kEnds[random.below(std::size(kEnds))];
  run.reach(end == 0xffffffff ? "epochs wrap" : "epochs pass a half");
  return run.option("epoch_before", end - random.below(kCallsBefore));
}

}  // namespace tokenyard::test
