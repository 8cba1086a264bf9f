/// The options that the ranks of a LowLatency object agreed on, and what follows from them for its
/// calls. Immutable.
#pragma once

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/low_latency/host/paths.hpp"
#include "expert_parallel/low_latency/host/plan.hpp"
#include "expert_parallel/low_latency/kernels/expert_homes.hpp"
#include "expert_parallel/low_latency/kernels/sums_layout.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::low_latency {

struct Setup {
  /// Collective; throws on all ranks alike. Prepares the kernels.
  Setup(World& world, const LowLatencyOptions& options);
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  /// Returns the places of all ranks together.
  uint32_t places() const { return places_of(options, world.size()); }
  uint32_t local_experts() const { return homes.held_by(world.rank()); }
  uint32_t first_expert() const { return homes.first_of(world.rank()); }

  World& world;
  Accelerator& accelerator;
  const LowLatencyOptions options;
  const Paths paths;
  const Plan plan;
  const WindowLayout layout;  ///< of every rank's window
  const SumsLayout sums;      ///< layout of partial sums in staging
  const ExpertHomes homes;    ///< of places, which kernels know as experts
};

}  // namespace tokenyard::low_latency
