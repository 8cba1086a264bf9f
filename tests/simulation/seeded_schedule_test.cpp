// Seeded schedules: unusual orders, but every thread runs again.
#include "simulation/seeded_schedule.hpp"

#include <gtest/gtest.h>

#include <array>

namespace tokenyard::simulation {
namespace {

// Waiting threads keep polling, so there is always a thread to pick. A regression: when all
// priorities had reached 0, the first thread was always picked.
TEST(SeededSchedule, EverybodyRunsAgainAndAgain) {
  using Kind = SeededSchedule::Kind;
  for (const Kind kind : {Kind::random, Kind::priorities, Kind::bursts}) {
    SeededSchedule schedule({.kind = kind, .change_per_1024 = 256}, Random(7));
    std::array<simt::ThreadName, 4> threads{};
    std::array<const simt::ThreadName*, 4> runnable{};
    for (uint32_t id = 0; id < threads.size(); ++id) {
      threads[id].id = id;
      runnable[id] = &threads[id];
    }
    constexpr uint32_t kRounds = 20, kPicks = 1000;
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::array<uint32_t, 4> turns{};
      for (uint32_t i = 0; i < kPicks; ++i) ++turns[schedule.pick(runnable)];
      for (uint32_t id = 0; id < threads.size(); ++id)
        EXPECT_GT(turns[id], 0u) << "thread " << id << " in round " << round << " of kind "
                                 << static_cast<int>(kind);
    }
  }
}

}  // namespace
}  // namespace tokenyard::simulation
