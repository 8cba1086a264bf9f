/// Schedules threads by a seed, in orders that are rare on real machines but reveal bugs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simt/schedule.hpp"
#include "simulation/random.hpp"

namespace tokenyard::simulation {

class SeededSchedule final : public simt::Schedule {
 public:
  enum class Kind : uint8_t {
    random,      ///< any thread
    priorities,  ///< the highest random priority; a few change at random moments. Finds a bug that
                 ///< needs d orderings with a known probability (Burckhardt et al., 2010)
    starved,     ///< one warp runs only if no other thread can, or once in a while
    straggler,   ///< one rank runs only if no other can, or once in a while
    bursts,      ///< one thread many times in a row, then another
  };
  struct Options {
    Kind kind = Kind::random;
    uint32_t preempt_per_1024 = 300;         ///< chance that a thread stops after an access
    uint32_t step_per_1024 = 300;            ///< chance that memory takes a step between threads
    uint32_t change_per_1024 = 4;            ///< chance that a priority changes, or a burst ends
    uint32_t rank = 0, block = 0, warp = 0;  ///< the starved warp, or the straggler rank
    static Options draw(Random& random, uint32_t ranks);
    std::string text() const;
  };

  SeededSchedule(const Options& options, Random random) : options_(options), random_(random) {}

  size_t pick(std::span<const simt::ThreadName* const> runnable) override;
  bool preempt(const simt::ThreadName& running) override;
  bool step_memory() override;
  /// While set, any thread may run next, so starved ones make progress.
  void be_fair(bool fair) { fair_ = fair; }

 private:
  /// Inline in the common case, because a pick looks at every runnable thread.
  uint64_t& priority(const simt::ThreadName& thread) {
    return thread.id < priorities_.size() ? priorities_[thread.id] : draw_priority(thread);
  }
  uint64_t& draw_priority(const simt::ThreadName& thread);
  bool starved(const simt::ThreadName& thread) const {
    if (thread.rank != options_.rank) return false;
    if (options_.kind == Kind::straggler) return true;
    return thread.block == options_.block && thread.thread / 32 == options_.warp;
  }

  Options options_;
  Random random_;
  bool fair_ = false;
  std::vector<uint64_t> priorities_, host_priorities_;  ///< by thread id; by rank
  uint32_t burst_ = ~0u;                                ///< thread id
};

}  // namespace tokenyard::simulation
