/// The launch plan of a dynamic run: for each task, the worker or the scheduler that launches it,
/// and for each scheduler, the order in which it begins to watch events.
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
  /// Returns how an event's tasks are launched; Launch::nobody in a static run.
  Launch of(uint32_t rank, uint32_t event) const {
    return ranks_.empty() ? Launch::nobody : ranks_[rank].launch[event];
  }
  /// Returns whether this signal of the task, by index, is the one that starts its follower.
  bool is_followed(uint32_t rank, uint32_t task, uint32_t signal) const {
    return !ranks_.empty() && ranks_[rank].followed[task] == signal;
  }
  /// Returns the follower that an event's single signal starts. Only for events with
  /// Launch::follower.
  uint32_t follower_of(uint32_t rank, uint32_t event) const {
    return ranks_[rank].follower_of[event];
  }
  std::vector<Dependent> dependents_of(uint32_t rank) const {
    return ranks_.empty() ? std::vector<Dependent>{} : ranks_[rank].dependents;
  }
  /// Returns first what each scheduler does when an iteration begins, then what it does per event.
  std::vector<Watch> watches_of(uint32_t rank) const {
    return ranks_.empty() ? std::vector<Watch>{} : ranks_[rank].watches;
  }
  /// Returns all tasks of a rank: first those that reach workers through the queue, in the expected
  /// order, then all others.
  const std::vector<uint32_t>& order_of(uint32_t rank) const { return ranks_[rank].order; }
  uint32_t queued(uint32_t rank) const { return ranks_.empty() ? 0 : ranks_[rank].queued; }
  /// Returns whether the rank has tasks pinned to one worker.
  bool pins(uint32_t rank) const { return !ranks_.empty() && ranks_[rank].pins; }
  /// Returns whether the iteration counts the end of a task. It need not if the task's only signal
  /// goes to an event of this rank that another task of the iteration awaits, since that one ends
  /// later.
  bool counts(uint32_t rank, uint32_t task) const {
    return !ranks_.empty() && ranks_[rank].counted[task];
  }
  uint32_t event_slots() const { return event_slots_; }  ///< capacity of each scheduler's list

  friend Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers,
                                const GraphOrder& events_only, uint32_t schedulers,
                                uint32_t event_slots);

 private:
  struct OfRank {
    std::vector<Launch> launch;         ///< [events]
    std::vector<uint32_t> followed;     ///< [tasks] index of a signal, or kNobody
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

/// Plans the launches of all ranks. `event_slots`: events that a scheduler can watch at once; 0: as
/// many as needed. Throws InvalidGraph: queue_capacity if event_slots is too small, since an event
/// that no scheduler watches launches nothing; trigger_count for a dynamic event of another rank,
/// which only static runs support.
Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers,
                       const GraphOrder& events_only, uint32_t schedulers, uint32_t event_slots);

}  // namespace tokenyard::megakernel
