/// The machine of all ranks of a simulated job: one memory model and one executor, driven by the
/// job's virtual time, so that anything may happen to a rank between any two steps of its kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "collectives/simulated/virtual_network.hpp"
#include "simulation/simulation.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::job_test {

using collectives::simulated::ProcessId;
using collectives::simulated::Schedule;
using membership::Instant;
using simulation::ModelMemory;
using simulation::Random;
using simulation::Simulation;

class Computation {
 public:
  /// `turn`: virtual time of one turn of a thread; 0: a kernel takes none.
  Computation(simulation::SeedRun& run, Schedule& schedule, uint32_t ranks, Instant turn)
      : schedule_(schedule),
        turn_(turn),
        simulation_({.ranks = ranks,
                     .random = Random(run.seed ^ 0xc0397),
                     .trace = &run.trace,
                     .mutator = run.mutator}) {
    // A rank that no process is: it waits all the time, so that a pause is no deadlock.
    simulation_.add_program(kNobody, "nobody", [this](ModelMemory::Host) {
      simulation_.executor().host_wait([] { return false; });
    });
    schedule_.between_events(
        [this](Instant until, const bool& early) { return pass(until, early); });
  }

  Simulation& simulation() { return simulation_; }
  /// A program may find what it waits for.
  void happened() { simulation_.memory().happened(); }
  /// Waits on a program's fiber.
  template <class Condition>
  void wait(Condition holds) {
    simulation_.executor().host_wait(holds);
  }
  /// Has this happen after so many turns of threads, between two of their steps, or once they wait.
  void after_turns(uint64_t turns, std::function<void()> action) {
    blow_ = {turns, std::move(action)};
  }
  /// Has a program that waits look at the time then.
  void wake_at(Instant when) {
    schedule_.at(when, [this] { happened(); });
  }

 private:
  static constexpr ProcessId kNobody = 1000;
  /// Longest time in which no wait looks at its deadline.
  static constexpr Instant kLookMost = std::chrono::milliseconds(20);

  Instant pass(Instant until, const bool& early) {
    const auto end = static_cast<uint64_t>(until.count());
    const uint64_t progress = simulation_.memory().progress();
    if (is_idle_ && progress == seen_ && until - looked_ < kLookMost) {
      simulation_.skip_until(end);
      return until;
    }
    uint64_t turns = UINT64_MAX;
    if (turn_ > Instant{}) turns = static_cast<uint64_t>((until - schedule_.now()) / turn_) + 1;
    if (blow_.action) turns = std::min(turns, blow_.turns);
    is_idle_ = simulation_.run_until(end, turns, early);
    if (blow_.action && !early) {
      is_idle_ = false;
      std::exchange(blow_.action, {})();
    }
    seen_ = simulation_.memory().progress();
    looked_ = until;
    return early ? schedule_.now() : until;
  }

  Schedule& schedule_;
  const Instant turn_;
  Simulation simulation_;
  struct Blow {
    uint64_t turns = 0;
    std::function<void()> action;
  } blow_;
  bool is_idle_ = false;
  uint64_t seen_ = 0;
  Instant looked_{};
};

}  // namespace tokenyard::job_test
