/// One simulated run: memory, schedule and time determined by a seed, and the executor over them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mapping.hpp"
#include "simt/executor.hpp"
#include "simulation/model_memory.hpp"
#include "simulation/seeded_schedule.hpp"
#include "simulation/virtual_time.hpp"

namespace tokenyard::simulation {

/// A rank that stops during the run: its threads never run again.
struct RankStop {
  uint32_t rank = 0;
  uint64_t after_steps = 0;    ///< memory steps
  const bool* from = nullptr;  ///< counts steps once this is true; null: from the beginning
  InFlight fate = InFlight::land;
};

class Simulation {
 public:
  struct Options {
    uint32_t ranks = 1;
    Random random;
    Trace* trace;  ///< must outlive the simulation
    Mutator* mutator = nullptr;
    std::optional<RankStop> stop = std::nullopt;
    std::function<void(uint32_t rank)> on_stop = [](uint32_t) {};
  };
  explicit Simulation(const Options& options);

  /// Adds host code of a rank: its program, or a stream. It runs as a fiber and must not throw.
  ModelMemory::Host add_program(uint32_t rank, std::string label,
                                std::function<void(ModelMemory::Host)> program);
  /// Runs until `finished()`. Throws what Executor::run throws, such as Deadlock or KernelMisuse.
  void run(const std::function<bool()>& finished);
  /// Runs up to a time, at which something outside happens: until nothing can happen before it, or
  /// for so many turns of threads; then it is that time. Ends before it if `early` becomes true.
  /// For runs that something else drives; at least one program must wait all the time. Returns
  /// whether nothing could happen. Throws what `run` throws.
  bool run_until(uint64_t end_ns, uint64_t turns, const bool& early);
  /// Has time pass in which no thread runs.
  void skip_until(uint64_t end_ns);
  /// Stops a rank between two runs; `resume` has it go on.
  void stop(uint32_t rank) { executor_.stop_rank(rank); }
  void resume(uint32_t rank) { executor_.resume_rank(rank); }
  /// Kills a rank between two runs: its stores in flight land, vanish or tear.
  void kill(uint32_t rank, InFlight fate);
  bool stopped(uint32_t rank) const { return stopped_ && options_.stop->rank == rank; }

  /// Allocates checked memory of a rank. No address is returned twice in one run.
  std::byte* allocate(const std::string& name, size_t bytes, uint32_t rank);
  void free(void* memory);

  ModelMemory& memory() { return memory_; }
  simt::Executor& executor() { return executor_; }
  uint64_t now_ns() { return time_.now_ns(); }
  /// Returns the settings that the seed has drawn, as text.
  std::string text() const;

 private:
  static constexpr uint32_t kQuietTurns = 3000;
  static constexpr uint32_t kFairRounds = 16;  ///< rounds of kQuietTurns before time passes

  void stop_if_due();
  void notice_quiet();

  Options options_;
  Policy policy_;
  SeededSchedule::Options schedule_options_;
  VirtualTime time_;
  SeededSchedule schedule_;
  ModelMemory memory_;
  simt::Executor executor_;
  std::vector<Mapping> allocations_;
  bool stopped_ = false;
  std::optional<uint64_t> stop_at_;  ///< step, once steps are counted
  uint64_t quiet_since_ = 0;         ///< memory's progress when it last changed
  uint32_t quiet_turns_ = 0, quiet_rounds_ = 0;
};

}  // namespace tokenyard::simulation
