#include "simulation/seeded_schedule.hpp"

#include <fmt/format.h>

namespace tokenyard::simulation {

using simt::ThreadName;

SeededSchedule::Options SeededSchedule::Options::draw(Random& random, uint32_t ranks) {
  Options options;
  options.kind = static_cast<Kind>(random.below(5));
  options.preempt_per_1024 = random.chance(300) ? 0 : random.between(16, 700);
  options.step_per_1024 = random.between(16, 700);
  options.change_per_1024 = 1u << random.below(8);
  options.rank = random.below(ranks);
  options.block = random.below(2);
  options.warp = random.below(4);
  return options;
}

std::string SeededSchedule::Options::text() const {
  constexpr const char* kNames[] = {"random", "priorities", "starved", "straggler", "bursts"};
  std::string text = kNames[static_cast<size_t>(kind)];
  if (kind == Kind::starved)
    text += fmt::format(" warp {} of block {} of rank {}", warp, block, rank);
  if (kind == Kind::straggler) text += fmt::format(" rank {}", rank);
  return text + fmt::format(", preempt {}/1024, memory {}/1024, change {}/1024", preempt_per_1024,
                            step_per_1024, change_per_1024);
}

uint64_t& SeededSchedule::draw_priority(const ThreadName& thread) {
  // Host programs have no id; those of a rank share a priority.
  const bool host = thread.id == UINT32_MAX;
  std::vector<uint64_t>& priorities = host ? host_priorities_ : priorities_;
  const uint32_t index = host ? thread.rank : thread.id;
  while (index >= priorities.size()) priorities.push_back(random_.next());
  return priorities[index];
}

size_t SeededSchedule::pick(std::span<const ThreadName* const> runnable) {
  const auto count = static_cast<uint32_t>(runnable.size());
  if (fair_) return random_.below(count);
  const bool change = random_.chance(options_.change_per_1024);
  switch (options_.kind) {
    case Kind::random:
      break;
    case Kind::priorities: {
      size_t highest = 0;
      uint64_t most = priority(*runnable[0]);
      for (size_t index = 1; index < count; ++index) {
        const uint64_t next = priority(*runnable[index]);
        if (next <= most) continue;
        most = next;
        highest = index;
      }
      // A thread that was moved to the end twice has priority 0. If all have, any of them may run;
      // otherwise the first of them would run for ever.
      if (most == 0) return random_.below(count);
      // Moves the thread to the end: its priority is then below every fresh one.
      if (change) priority(*runnable[highest]) >>= 32;
      return highest;
    }
    case Kind::starved:
    case Kind::straggler: {
      if (change) break;
      // A few tries usually find a thread that is not starved; without one, a starved one runs.
      for (uint32_t tries = 0; tries < 8; ++tries) {
        const uint32_t index = random_.below(count);
        if (!starved(*runnable[index])) return index;
      }
      for (size_t index = 0; index < count; ++index)
        if (!starved(*runnable[index])) return index;
      break;
    }
    case Kind::bursts: {
      if (!change)
        for (size_t index = 0; index < count; ++index)
          if (runnable[index]->id == burst_) return index;
      const uint32_t index = random_.below(count);
      burst_ = runnable[index]->id;
      return index;
    }
  }
  return random_.below(count);
}

bool SeededSchedule::preempt(const ThreadName&) {
  return random_.chance(options_.preempt_per_1024);
}

bool SeededSchedule::step_memory() {
  return random_.chance(options_.step_per_1024);
}

}  // namespace tokenyard::simulation
