/// Who waits for a dead rank is late itself, and alive.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "expert_parallel/low_latency_checks.hpp"
#include "expert_parallel/low_latency_survivors.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{1600};
/// Of rank 0's dispatch: after it has listened for the last time before its timeout, which it does
/// eight times, and so long before its end that a busy machine may oversleep.
constexpr milliseconds kFirstPulse{1450}, kLastFirstPulse{1580};

/// Rank 2 has left. Rank 0 knows, has gone on, and waits for rank 1's ids; rank 1 finds out late,
/// and has begun to wait for rank 2 only shortly before rank 0's patience ends. Whether it was in
/// time.
bool hear_a_first_pulse_late() {
  const LowLatencyCase of{.shape = {.ranks = 3, .experts = 6, .hidden = 64, .topk = 4},
                          .tokens = {4, 4, 4},
                          .early_weights = 0b111};
  bool in_time = true;
  const auto all = World::in_process(3, "host", {.arena_bytes = size_t{4} << 20});
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, of.options());
    Survivor survivor(exchange, world.rank() == 2 ? std::nullopt : std::optional(2u));
    SurvivorBatch first(survivor, of, false), second(survivor, of, false);
    first.call.timeout = second.call.timeout = kTimeout;
    first.dispatch(false);
    world.barrier("a batch is dispatched");
    if (world.rank() == 0) exchange.update_mask(2, true);
    if (world.rank() == 1) {
      // The half that receives has a shorter patience than rank 0's.
      first.call.timeout = kTimeout / 4;
      first.combine(true);
      exchange.wait();
    }
    world.barrier("rank 1 has sent its sums");
    if (world.rank() == 0) first.combine(false);
    world.barrier("rank 0 goes on");
    const auto begin = std::chrono::steady_clock::now();
    if (world.rank() == 1) {
      std::this_thread::sleep_until(begin + kFirstPulse);
      in_time = std::chrono::steady_clock::now() - begin < kLastFirstPulse;
      first.receive_combine();
    }
    if (world.rank() != 2) {
      second.dispatch(false);
      if (in_time) survivor.require_only_the_stopped_masked();
    }
    world.barrier("nobody calls any more");
  }));
  return in_time;
}

TEST(LowLatencyPulses, AFirstOneIsHeardHoweverLate) {
  bool in_time = false;
  for (int attempt = 0; attempt < 5 && !in_time; ++attempt) in_time = hear_a_first_pulse_late();
  EXPECT_TRUE(in_time) << "the machine was too busy for a test of when something comes";
}

}  // namespace
}  // namespace tokenyard::test
