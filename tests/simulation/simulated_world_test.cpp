// Worlds in the simulator: programs, streams, virtual time, ranks that stop, and replay.

#include "fabric/world_access.hpp"
#include "world/simulated.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device.hpp"
#include "fabric/abort_flag.hpp"

// Fibers of a stopped rank are abandoned midway, so objects that they own are never freed.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}

namespace tokenyard {
namespace simulated_world_test {

struct CountParams {
  uint32_t* count;
  const uint32_t* wanted;  ///< word to await; null for none
  WaitContext wait_context;
};

/// Every thread adds one; then one thread awaits `wanted`, if given.
void count_and_wait(const CountParams& params) {
  add<Order::relaxed, Scope::gpu>(params.count, 1);
  if (params.wanted == nullptr || thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  Awaited what{.phase = 0, .rank = 1, .expected = 1, .seen = 0};
  wait_until(deadline, what, [&] { return load<Order::acquire, Scope::sys>(params.wanted) == 1; });
}
TOKENYARD_DEFINE_HOST_KERNEL(count_kernel, count_and_wait, CountParams, NoShared, 128)

void barrier_forever(const CountParams&) {
  if (thread::index() < 32) NamedBarrier(static_cast<uint8_t>(3)).sync(64);
}
TOKENYARD_DEFINE_HOST_KERNEL(stuck_kernel, barrier_forever, CountParams, NoShared, 128)

using simulation::SeedRun;
using simulation::Trace;
using testing::HasSubstr;

simulated::Result run(uint64_t seed, Trace& trace, const simulated::Options& options,
                      const std::function<void(World&)>& program) {
  SeedRun seed_run(seed, trace, nullptr);
  return simulated::run(seed_run, options, program);
}

/// Counts on two streams; the host afterwards reads the complete count.
void count_twice(World& world) {
  Accelerator& accelerator = accelerator_of(world);
  ErrorRecord failure(accelerator, abort_flag_of(world));
  auto* const count = static_cast<uint32_t*>(accelerator.allocate(sizeof(uint32_t)));
  const CountParams params{count, nullptr, failure.wait_context(world.timeout())};
  const Stream other = accelerator.make_stream();
  launch(accelerator, count_kernel, {.blocks = 2, .warps = 2}, Stream{}, params);
  accelerator.wait(other, accelerator.record(Stream{}));
  launch(accelerator, count_kernel, {.blocks = 1, .warps = 1}, other, params);
  const Event end = accelerator.record(other);
  ASSERT_TRUE(accelerator.wait_until(accelerator.now() + std::chrono::seconds(1),
                                     [&] { return accelerator.done(end); }));
  EXPECT_EQ(*count, 160u);
  accelerator.free(count);
  world.barrier("counted");
}

/// Awaits a word that no thread writes.
void wait_in_vain(World& world) {
  Accelerator& accelerator = accelerator_of(world);
  ErrorRecord failure(accelerator, abort_flag_of(world));
  auto* const words = static_cast<uint32_t*>(accelerator.allocate(64));
  launch(accelerator, count_kernel, {.blocks = 1, .warps = 1}, Stream{},
         {words, words + 4, failure.wait_context(world.timeout())});
  const Event end = accelerator.record(Stream{});
  accelerator.wait_until(accelerator.now() + 2 * world.timeout(),
                         [&] { return accelerator.done(end); });
  const std::array<std::string, 1> phases{"in vain"};
  failure.check(phases);
}

TEST(SimulatedWorld, StreamsRunInOrderAndEventsJoinThem) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Trace trace;
    run(seed, trace, {.ranks = 3, .arena_bytes = 4096}, count_twice).require_clean();
  }
}

TEST(SimulatedWorld, TheSameSeedGivesTheSameTraceAndAnotherSeedAnother) {
  const auto hash = [](uint64_t seed) {
    Trace trace;
    run(seed, trace, {.ranks = 2, .arena_bytes = 4096}, count_twice);
    return trace.hash();
  };
  EXPECT_EQ(hash(7), hash(7));
  EXPECT_NE(hash(7), hash(8));
}

TEST(SimulatedWorld, ATimeoutOfHalfAMinuteCostsVirtualTimeOnly) {
  Trace trace;
  const auto begin = std::chrono::steady_clock::now();
  const auto result = run(3, trace, {.ranks = 2, .arena_bytes = 4096}, wait_in_vain);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto error = result.expect<PeerTimeout>(rank);
    EXPECT_EQ(error.facts.rank, 1u);
    EXPECT_EQ(error.facts.phase, "in vain");
    EXPECT_GE(error.facts.waited_s, 30);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(SimulatedWorld, ARankWhoseConnectionClosesIsLostAndASilentOneTimesOut) {
  for (const bool noticed : {true, false}) {
    Trace trace;
    const auto result = run(5, trace,
                            {.ranks = 2,
                             .arena_bytes = 4096,
                             .stop = simulation::RankStop{.rank = 1, .after_steps = 60},
                             .stop_is_noticed = noticed},
                            [](World& world) {
                              if (world.rank() == 0) wait_in_vain(world);
                              world.barrier("never");
                            });
    if (noticed)
      EXPECT_EQ(result.expect<PeerLost>(0).facts.rank, 1u);
    else
      EXPECT_EQ(result.expect<PeerTimeout>(0).facts.rank, 1u);
  }
}

TEST(SimulatedWorld, ADeadlockEndsTheRunAndSaysWhoAwaitsWhat) {
  Trace trace;
  const auto result = run(1, trace, {.ranks = 1, .arena_bytes = 4096}, [](World& world) {
    launch(accelerator_of(world), stuck_kernel, {.blocks = 1, .warps = 2}, Stream{}, CountParams{});
    const Event end = accelerator_of(world).record(Stream{});
    accelerator_of(world).wait_until(TimePoint::max(),
                                     [&] { return accelerator_of(world).done(end); });
  });
  EXPECT_THAT(result.failure, HasSubstr("barrier 3"));
}

TEST(SimulatedWorld, APartsExceptionIsThatRanksAlone) {
  Trace trace;
  const auto result = run(1, trace, {.ranks = 2, .arena_bytes = 4096}, [](World& world) {
    if (world.rank() == 1) throw Unsupported("this", "a test");
  });
  EXPECT_FALSE(result.thrown[0]);
  EXPECT_EQ(result.expect<Unsupported>(1).why, "a test");
  EXPECT_THROW(result.require_clean(), simulation::SuiteFailure);
  EXPECT_NO_THROW(result.require_clean({1}));
}

}  // namespace simulated_world_test
}  // namespace tokenyard
