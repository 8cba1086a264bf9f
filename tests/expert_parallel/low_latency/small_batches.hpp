/// Small batches of suites in which a rank falls out: late, dead or replaced.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "expert_parallel/low_latency/checks.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::test {

/// Far above the slowest delivery that a seed draws, so that no other rank is late.
inline constexpr std::chrono::milliseconds kTimeout{100};
/// Of the world: giving up on a rank takes several timeouts of calls.
inline constexpr std::chrono::seconds kWorldTimeout{100};

/// Draws what batches of `of` are made of, but for shape and map. Returns the multiprocessors of
/// each rank, [ranks].
inline std::vector<uint32_t> draw_small_batches(simulation::SeedRun& run, LowLatencyCase& of) {
  simulation::Random& random = run.random;
  std::vector<uint32_t> sms;
  of.shape.hidden = 32;
  for (uint32_t rank = 0; rank < of.shape.ranks; ++rank) {
    of.tokens.push_back(random.below(4));
    sms.push_back(random.between(2, 3));
  }
  run.option("tokens", fmt::format("{}", of.tokens));
  run.option("sms", fmt::format("{}", sms));
  of.rows = run.option("fp8", random.chance(512)) ? LowLatencyRows::fp8 : LowLatencyRows::bf16;
  of.hooks = run.option("hooks", random.chance(512));
  of.early_weights = run.option("early_weights", random.below(1 << of.shape.ranks));
  of.seed = static_cast<uint32_t>(random.next());
  return sms;
}

}  // namespace tokenyard::test
