/// Worlds inside a simulated run: all ranks' programs and kernels run in one OS thread, with weak
/// memory, adversarial schedules and virtual time, all drawn from a seed.
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

#include "fabric/network/network.hpp"
#include "fabric/network/nic.hpp"
#include "fabric/network/simulated_network.hpp"
#include "simulation/simulation.hpp"
#include "simulation/suite.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::simulated {

struct Options {
  uint32_t ranks = 2;
  uint32_t hosts = 1;
  std::vector<uint32_t> host_of = {};  ///< [ranks] if hosts differ in size: see InProcessFabric
  size_t arena_bytes = size_t{1} << 20;
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< virtual
  CardOptions card = {};         ///< of each rank's card if hosts > 1; seed 0: drawn
  uint32_t queues_per_peer = 4;  ///< to ranks of other hosts
  bool within_hosts = false;     ///< see SimulatedCard
  /// Makes a rank's network, which may run kernels and a simulated card as this one says; empty:
  /// the network is that card.
  std::function<MakeNetwork(const SimulatedCard& card)> network = {};
  /// A rank that stops during the run, and whether the others notice (its connection closes).
  std::optional<simulation::RankStop> stop = std::nullopt;
  bool stop_is_noticed = false;
  uint32_t epoch_before = 0;          ///< of exchanges, see epoch_before()
  std::vector<uint32_t> absent = {};  ///< ranks that run no program
};

struct Result {
  std::vector<std::exception_ptr> thrown;  ///< [ranks] exception of a rank's program, or null
  std::vector<std::string> findings;       ///< races and misuses, with their source lines
  std::string failure;                     ///< a deadlock, or a misuse that ended the run
  std::string drawn;                       ///< choices of the seed, as text
  uint64_t steps = 0;

  /// Throws SuiteFailure, which lists everything wrong, unless the run is clean. `expected`: ranks
  /// that may throw.
  void require_clean(const std::vector<uint32_t>& expected = {}) const;
  /// Does the same after the stop of a rank: that rank may throw anything, the others PeerTimeout
  /// or PeerLost, which are the only effects that a stopped rank should have on them.
  void require_clean_after(const std::optional<simulation::RankStop>& stop) const;
  /// Returns the Error_ that this rank's program threw. Throws SuiteFailure if it threw none.
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
          fmt::format("rank {} threw a different error: {}\n{}", rank, error.what(), drawn));
    }
  }
};

/// Runs `program` for every present rank, each with its end of one world, until all have returned
/// or thrown. Kernels may use only the world's memory: its arena, or its accelerator's memory.
Result run(simulation::SeedRun& seed, const Options& options,
           const std::function<void(World&)>& program);

}  // namespace tokenyard::simulated
