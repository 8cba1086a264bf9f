/// Who launches which task of a dynamic run: the worker before it, or a scheduler once it has seen
/// the task's event; and in which order schedulers come to see events.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megakernel/kernels/run_params.hpp"
#include "megakernel/proofs/order.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

class Launches {
 public:
  /// Nobody, in a static run.
  Launch of(uint32_t rank, uint32_t event) const {
    return ranks_.empty() ? Launch::nobody : ranks_[rank].launch[event];
  }
  /// Whether this signal, the task's i-th, is the one that its follower runs by.
  bool is_followed(uint32_t rank, uint32_t task, uint32_t signal) const {
    return !ranks_.empty() && ranks_[rank].followed[task] == signal;
  }
  /// The task that runs by an event's one signal. Of a follower's event only.
  uint32_t follower_of(uint32_t rank, uint32_t event) const {
    return ranks_[rank].follower_of[event];
  }
  std::vector<Dependent> dependents_of(uint32_t rank) const {
    return ranks_.empty() ? std::vector<Dependent>{} : ranks_[rank].dependents;
  }
  /// First what each scheduler does at an iteration's begin, then what it does by events.
  std::vector<Watch> watches_of(uint32_t rank) const {
    return ranks_.empty() ? std::vector<Watch>{} : ranks_[rank].watches;
  }
  /// All tasks of a rank: first those that come to workers through the queue, as they are expected
  /// to come, then all others.
  const std::vector<uint32_t>& order_of(uint32_t rank) const { return ranks_[rank].order; }
  uint32_t queued(uint32_t rank) const { return ranks_.empty() ? 0 : ranks_[rank].queued; }
  /// Whether there are tasks that go to one worker only.
  bool pins(uint32_t rank) const { return !ranks_.empty() && ranks_[rank].pins; }
  /// Whether an iteration awaits the end of a task by itself. Not if all that the task signals is
  /// one event of this rank that another task of the iteration awaits: its end says as much.
  bool counts(uint32_t rank, uint32_t task) const {
    return !ranks_.empty() && ranks_[rank].counted[task];
  }
  uint32_t event_slots() const { return event_slots_; }  ///< of each scheduler's list

  friend Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers,
                                const GraphOrder& events_only, uint32_t schedulers,
                                uint32_t event_slots);

 private:
  struct OfRank {
    std::vector<Launch> launch;         ///< [events]
    std::vector<uint32_t> followed;     ///< [tasks] a signal's index, or kNobody
    std::vector<uint32_t> follower_of;  ///< [events] a task, or kNobody
    std::vector<Dependent> dependents;
    std::vector<Watch> watches;
    std::vector<uint32_t> order;  ///< [tasks]
    std::vector<bool> counted;    ///< [tasks]
    uint32_t queued = 0;
    bool pins = false;
  };
  friend class LaunchPlan;
  static constexpr uint32_t kNobody = UINT32_MAX;
  std::vector<OfRank> ranks_;
  uint32_t event_slots_ = 0;
};

/// `event_slots`: events that a scheduler can look out for at a time, 0 for as many as there are.
/// Throws InvalidGraph (queue_capacity) if it is less: an event that nobody looks out for launches
/// nothing. (trigger_count) for a dynamic event of another rank, which only static runs have.
Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers,
                       const GraphOrder& events_only, uint32_t schedulers, uint32_t event_slots);

}  // namespace tokenyard::megakernel
