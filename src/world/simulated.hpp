/// Worlds inside a simulated run: every rank's program and kernels in one OS thread, with weak
/// memory, odd schedules and virtual time, all by a seed.
///
///     simulated::run(seed_run, {.ranks = 3}, [&](World& world) {...}).require_clean();
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulation/simulation.hpp"
#include "simulation/suite.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::simulated {

struct Options {
  uint32_t ranks = 2;
  uint32_t hosts = 1;
  size_t arena_bytes = size_t{1} << 20;
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< virtual
  /// A rank that stops in the middle, and whether the others are told (its connection closes).
  std::optional<simulation::RankStop> stop = std::nullopt;
  bool stop_is_noticed = false;
};

struct Result {
  std::vector<std::exception_ptr> thrown;  ///< [ranks] what a rank's program threw, if anything
  std::vector<std::string> findings;       ///< races and misuses, with their source lines
  std::string failure;                     ///< a deadlock, or a misuse that ended the run
  std::string drawn;                       ///< what the seed decided, for people
  uint64_t steps = 0;

  /// Throws SuiteFailure with all that is wrong, if anything is. `expected`: ranks that may throw.
  void require_clean(const std::vector<uint32_t>& expected = {}) const;
  /// The same where a rank may have stopped: it may throw what it likes, the others PeerTimeout or
  /// PeerLost, which is all that a stopped rank should do to them.
  void require_clean_after(const std::optional<simulation::RankStop>& stop) const;
  /// Throws unless this rank's program threw an Error_; gives its fields.
  template <class Error_>
  Error_ expect(uint32_t rank) const {
    if (!thrown[rank])
      throw simulation::SuiteFailure(fmt::format("rank {} did not throw\n{}", rank, drawn));
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (const Error_& error) {
      return error;
    } catch (const std::exception& error) {
      throw simulation::SuiteFailure(
          fmt::format("rank {} threw something else: {}\n{}", rank, error.what(), drawn));
    }
  }
};

/// Runs `program` for every rank, each with its end of one world, until all have returned or
/// thrown. Memory that kernels touch must be the world's: its arena, or its accelerator's.
Result run(simulation::SeedRun& seed, const Options& options,
           const std::function<void(World&)>& program);

}  // namespace tokenyard::simulated
