/// Batches of all ranks in the simulator, one after the other: each dispatched and combined before
/// the next begins, and checked against the reference.
#pragma once

#include <optional>
#include <vector>

#include "expert_parallel/low_latency/survivors.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {

struct BatchesInTurn {
  LowLatencyCase of;
  std::vector<uint32_t> sms;            ///< [ranks]
  std::optional<uint32_t> absent;       ///< rank that makes no calls and that the others mask
  std::vector<uint32_t> early_weights;  ///< [batches], each as in LowLatencyCase
  std::vector<bool> hooks;              ///< [batches]: receives are calls of their own
  uint32_t epoch_before = 0;
};

/// The program of one rank.
inline void exchange_in_turn(World& world, const BatchesInTurn& batches) {
  LowLatency exchange(world, batches.of.options());
  if (batches.absent == world.rank()) return;
  if (batches.absent) exchange.update_mask(*batches.absent, true);
  Survivor survivor(exchange, batches.absent);
  LowLatencyCase of = batches.of;
  of.sms = batches.sms[world.rank()];
  for (size_t i = 0; i < batches.hooks.size(); ++i) {
    of.early_weights = batches.early_weights[i];
    of.seed += 1;
    SurvivorBatch batch(survivor, of, false);
    batch.dispatch(batches.hooks[i]);
    if (batches.hooks[i]) batch.receive_dispatch();
    batch.combine(batches.hooks[i]);
    if (batches.hooks[i]) batch.receive_combine();
  }
  survivor.require_only_the_stopped_masked();
}

inline void run_in_turn(simulation::SeedRun& run, const BatchesInTurn& batches) {
  const simulated::Options options{
      .ranks = batches.of.shape.ranks,
      .arena_bytes = size_t{2} << 20,
      // Far above the slowest delivery that a seed draws: no rank is late.
      .timeout = std::chrono::milliseconds(100),
      .epoch_before = batches.epoch_before};
  simulated::run(run, options, [&](World& world) {
    exchange_in_turn(world, batches);
  }).require_clean();
}

}  // namespace tokenyard::test
