/// Which tasks a complete event launches in a dynamic run, and which scheduler does it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megakernel/run_params.hpp"
#include "megakernel/triggers.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

class Launches {
 public:
  /// Nobody, in a static run.
  Launch of(uint32_t rank, uint32_t event) const {
    return ranks_.empty() ? Launch::nobody : ranks_[rank].launch[event];
  }
  /// Where an event's tasks begin among the dependents; past the last event: those of an
  /// iteration's begin.
  uint32_t begin_of(uint32_t rank, uint32_t event) const {
    return ranks_.empty() ? 0 : ranks_[rank].begin[event];
  }
  std::vector<Dependent> dependents_of(uint32_t rank) const {
    return ranks_.empty() ? std::vector<Dependent>{} : ranks_[rank].dependents;
  }
  /// Whether an iteration awaits the end of a task by itself. Not if all that the task signals is
  /// one event of this rank that another task of the iteration awaits: its end says as much.
  bool counts(uint32_t rank, uint32_t task) const {
    return !ranks_.empty() && ranks_[rank].counted[task];
  }
  uint32_t event_slots() const { return event_slots_; }  ///< of each scheduler's queue

  friend Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers,
                                uint32_t schedulers, uint32_t event_slots);

 private:
  struct OfRank {
    std::vector<Launch> launch;   ///< [events]
    std::vector<uint32_t> begin;  ///< [events + 1]
    std::vector<Dependent> dependents;
    std::vector<bool> counted;  ///< [tasks]
  };
  std::vector<OfRank> ranks_;
  uint32_t event_slots_ = 0;
};

/// `event_slots`: room in each scheduler's queue, 0 for as much as is needed. Throws InvalidGraph
/// (queue_capacity) if it is less: then whoever completes an event could wait for a scheduler that
/// waits for it. (trigger_count) for a dynamic event of another rank, which only static runs have.
Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers, uint32_t schedulers,
                       uint32_t event_slots);

}  // namespace tokenyard::megakernel
