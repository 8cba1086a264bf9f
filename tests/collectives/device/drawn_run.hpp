/// The common parts of suites of collectives on device tensors: the wait for drawn calls, and the
/// run of a seed, in which some ranks stop.
#pragma once

#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "collectives/device/host/device_collectives.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw simulation::SuiteFailure(what);
}

/// A key of packets that a replay draws again.
inline std::array<uint32_t, 4> draw_key(simulation::Random& random) {
  std::array<uint32_t, 4> key;
  for (uint32_t& word : key) word = static_cast<uint32_t>(random.next());
  return key;
}

/// Waits for the started calls, compares their results, and forgets them.
template <class Started>
void require_results(World& world, device_collectives::DeviceCollectives& collectives,
                     std::vector<std::unique_ptr<Started>>& started) {
  collectives.wait();
  for (const auto& call : started) {
    const std::string wrong = call->difference();
    require(wrong.empty(), fmt::format("rank {}: {}", world.rank(), wrong));
  }
  started.clear();
}

/// Runs `program(world, drawn)` on every rank. `drawn` has ranks, epoch_before, and a rank that
/// stops, if one does.
template <class Drawn, class Program>
void run_drawn(simulation::SeedRun& run, const Drawn& drawn, const Program& program) {
  simulated::Options options{
      .ranks = drawn.ranks, .arena_bytes = size_t{1} << 20, .epoch_before = drawn.epoch_before};
  if (drawn.stops)
    options.stop =
        simulation::RankStop{.rank = *drawn.stops, .after_steps = run.random.below(4000)};
  options.stop_is_noticed = run.random.chance(512);
  options.absent = drawn.absent;
  simulated::run(run, options, [&](World& world) {
    program(world, drawn);
  }).require_clean_after(options.stop);
}

}  // namespace tokenyard::test
