/// A rank that waits for a dead one is late itself, but alive.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

using std::chrono::milliseconds, std::chrono::steady_clock;

constexpr milliseconds kTimeout{3200};
/// Interval of rank 0's dispatch between its last reading of all heartbeats, of which it makes
/// eight, and its timeout: wide enough for a busy machine.
constexpr milliseconds kFirstHeartbeat{2900}, kLastFirstHeartbeat{3000};

/// Rank 2 has left. Rank 0 knows, has continued, and waits for rank 1's ids. Rank 1 finds out late,
/// and begins to wait for rank 2 only shortly before rank 0 times out. Returns whether it began in
/// that interval.
bool hear_a_first_heartbeat_late() {
  const LowLatencyCase of{.shape = {.ranks = 3, .experts = 6, .hidden = 64, .topk = 4},
                          .tokens = {4, 4, 4},
                          .early_weights = 0b111};
  std::atomic<steady_clock::time_point> began{};
  std::atomic<bool> in_time = false;
  const auto all = World::in_process(3, "host", {.arena_bytes = size_t{4} << 20});
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, of.options());
    Survivor survivor(exchange, world.rank() == 2 ? std::nullopt : std::optional(2u));
    SurvivorBatch first(survivor, of, false);
    first.call.timeout = kTimeout;
    first.dispatch(false);
    world.barrier("a batch is dispatched");
    if (world.rank() == 0) exchange.update_mask(2, true);
    if (world.rank() == 1) {
      first.call.timeout = kTimeout / 8;  // Less than the time that its heartbeat gives rank 0.
      first.combine(true);
      exchange.wait();
    }
    world.barrier("rank 1 has sent its sums");
    if (world.rank() == 0) {
      first.combine(false);
      began = steady_clock::now();
    }
    world.barrier("rank 0 goes on");
    if (world.rank() == 1) {
      std::this_thread::sleep_until(began.load() + kFirstHeartbeat);
      in_time = steady_clock::now() - began.load() < kLastFirstHeartbeat;
      first.receive_combine();
    }
    if (world.rank() != 2) {
      const LowLatencyTokens tokens(world, of, of.draw()[world.rank()]);
      exchange.dispatch(tokens.input(), {.timeout = kTimeout});
      exchange.wait();
    }
    world.barrier("nobody calls any more");
    if (in_time) survivor.require_only_the_stopped_masked();
  }));
  return in_time;
}

TEST(LowLatencyHeartbeats, AFirstOneIsHeardHoweverLate) {
  bool in_time = false;
  for (int attempt = 0; attempt < 5 && !in_time; ++attempt) in_time = hear_a_first_heartbeat_late();
  EXPECT_TRUE(in_time) << "the machine was too busy for a test of when something comes";
}

}  // namespace
}  // namespace tokenyard::test
