/// The common parts of suites of collectives on device tensors: the wait for drawn calls, and the
/// run of a seed, in which some ranks stop.
#pragma once

#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "collectives/device/host/device_collectives.hpp"
#include "expert_parallel/drawn_epoch.hpp"
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

/// Makes a round in which a pair differs, of which the destination is told: all ranks must raise
/// the same error.
template <class Started>
void require_refused_pair(device_collectives::DeviceCollectives& collectives, Started&& started,
                          const device_collectives::Call& call, uint32_t destination,
                          const std::string& argument) {
  try {
    started.start(collectives, call);
    collectives.wait();
  } catch (const InvalidArgument& error) {
    return require(error.rank == destination && error.argument == argument,
                   fmt::format("another pair is accused: {}", error.what()));
  }
  throw simulation::SuiteFailure("a round in which a pair differs ended well");
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

/// The same between hosts, over the simulated network. `drawn` has host_of, empty slots where there
/// are any, and a rank that stops, if one does; `differs`: whether ranks make different calls.
template <class Drawn, class Program>
void run_drawn_between_hosts(simulation::SeedRun& run, const Drawn& drawn, bool differs,
                             const Program& program) {
  const bool may_stall = run.random.chance(256);
  simulated::Options options{
      .ranks = drawn.ranks(),
      .host_of = drawn.host_of,
      .arena_bytes = size_t{1} << 20,
      // Waits of one call may follow those of another, each up to 5/4 of this; the suite's own wait
      // for a stream lasts 60 s.
      .timeout = std::chrono::seconds(15),
      .card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000),
               .stall_ns_max = may_stall ? run.option("stall", uint32_t{100'000'000}) : 0,
               .first = run.option("first", (run.random.below(2) << 16) - run.random.below(12))},
      .queues_per_peer = run.option("queues", 2 * run.random.between(1, 2)),
      .epoch_before = draw_epoch_before(run)};
  if constexpr (requires { drawn.absent; }) options.absent = drawn.absent;
  if (drawn.stops) {
    // The stores land: other fates also lose those that an applied signal has released.
    options.stop = simulation::RankStop{
        .rank = *drawn.stops,
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(8, 14))),
        .fate = simulation::InFlight::land};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  simulated::run(run, options, [&](World& world) {
    try {
      program(world, drawn);
    } catch (const NetworkFault& error) {
      // A rank that misses another one takes its memory away, and cards refuse what is still put
      // there.
      const bool is_expected = drawn.stops || differs;
      if (!is_expected || error.facts.check != "target key" || error.facts.expected != 0) throw;
    }
  }).require_clean_after(options.stop);
}

}  // namespace tokenyard::test
