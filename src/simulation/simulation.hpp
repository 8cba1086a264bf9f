/// One simulated run: memory, schedule and time by a seed, and the executor over them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simt/executor.hpp"
#include "simulation/model_memory.hpp"
#include "simulation/seeded_schedule.hpp"
#include "simulation/virtual_time.hpp"

namespace tokenyard::simulation {

/// A rank that stops in the middle: its threads never run again.
struct RankStop {
  uint32_t rank = 0;
  uint64_t after_steps = 0;  ///< of memory
  InFlight fate = InFlight::land;
};

class Simulation {
 public:
  struct Options {
    uint32_t ranks = 1;
    Random random;
    Trace* trace;  ///< outlives the simulation
    Mutator* mutator = nullptr;
    std::optional<RankStop> stop = std::nullopt;
    std::function<void(uint32_t rank)> on_stop = [](uint32_t) {};
  };
  explicit Simulation(const Options& options);
  ~Simulation();

  /// A rank's host code, or a thread of it, as memory sees it. Runs as a fiber; must not throw.
  ModelMemory::Host add_program(uint32_t rank, std::string label,
                                std::function<void(ModelMemory::Host)> program);
  /// Runs until `finished()`. Throws what the executor does: a deadlock, a kernel's misuse.
  void run(const std::function<bool()>& finished);
  bool stopped(uint32_t rank) const { return stopped_ && options_.stop->rank == rank; }

  /// Memory of a rank that the model knows. It is never given out twice in one run.
  std::byte* allocate(const std::string& name, size_t bytes, uint32_t rank);
  void free(void* memory);

  ModelMemory& memory() { return memory_; }
  simt::Executor& executor() { return executor_; }
  uint64_t now_ns() { return time_.now_ns(); }
  /// What the seed has drawn, for people.
  std::string text() const;

 private:
  struct Allocation {
    std::byte* base;
    size_t bytes;
  };

  static constexpr uint32_t kQuietTurns = 3000;
  static constexpr uint32_t kFairRounds = 16;  ///< of so many turns, before time passes

  void notice_quiet();

  Options options_;
  Policy policy_;
  SeededSchedule::Options schedule_options_;
  VirtualTime time_;
  SeededSchedule schedule_;
  ModelMemory memory_;
  simt::Executor executor_;
  std::vector<Allocation> allocations_;
  bool stopped_ = false;
  uint64_t quiet_since_ = 0;  ///< memory's progress
  uint32_t quiet_turns_ = 0, quiet_rounds_ = 0;
};

}  // namespace tokenyard::simulation
