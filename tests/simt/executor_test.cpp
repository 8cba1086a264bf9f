/// The executor as the simulator uses it: grids of several ranks and their host programs run
/// together, in virtual time, in an order that the test's schedule chooses.
#include "simt/executor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "device/device.hpp"
#include "device/guarded_wait.hpp"
#include "simt/direct_memory.hpp"
#include "simt/misuse.hpp"

namespace tokenyard::testing {

namespace {

using simt::DirectMemory;
using simt::Executor;
using simt::ThreadName;
using ::testing::HasSubstr;

/// Time that passes only when all threads wait.
class JumpingTime final : public simt::TimeSource {
 public:
  uint64_t now_ns() override { return now_; }
  void idle(uint32_t, uint64_t wake_ns) override { now_ = wake_ns ? wake_ns : now_ + 50'000'000; }
  uint32_t rounds_max() const override { return 100; }

 private:
  uint64_t now_ = 1'000;
};

class Shuffled final : public simt::Schedule {
 public:
  explicit Shuffled(uint32_t seed) : random_(seed) {}
  size_t pick(std::span<const ThreadName* const> runnable) override {
    return random_() % runnable.size();
  }
  bool preempt(const ThreadName&) override { return random_() % 4 == 0; }
  bool step_memory() override { return false; }

 private:
  std::mt19937 random_;
};

struct RingParams {
  uint32_t rank, ranks, rounds;
  uint32_t* const* words;  ///< [ranks] each rank's word
  WaitContext wait_context;
  uint64_t* waited_ns;  ///< [1]
};
struct RingShared {
  uint32_t seen;
};

/// Passes a number around the ranks; all threads of a block see it before it is passed on.
void ring_body(const RingParams& params) {
  auto& shared = block::shared<RingShared>();
  const Deadline deadline = params.wait_context.start();
  const uint64_t start = now_ns();
  for (uint32_t round = 0; round < params.rounds; ++round) {
    const uint32_t expected = round * params.ranks + params.rank;
    if (thread::index() == 0) {
      Awaited what{.phase = 4,
                   .rank = (params.rank + params.ranks - 1) % params.ranks,
                   .expected = expected};
      wait_until(deadline, what, [&] {
        what.seen = load<Order::acquire, Scope::sys>(params.words[params.rank]);
        return what.seen >= expected;
      });
      shared.seen = static_cast<uint32_t>(what.seen);
    }
    block::sync();
    if (deadline.failed()) break;
    const uint32_t next = warp::max(shared.seen) + 1;
    block::sync();
    if (thread::index() == 0)
      store<Order::release, Scope::sys>(
          Peer<uint32_t>(params.words[(params.rank + 1) % params.ranks]), next);
  }
  if (thread::index() == 0) *params.waited_ns = now_ns() - start;
}

struct NapParams {
  uint64_t* woke_ns;  ///< [threads]
};
void nap_body(const NapParams& params) {
  nap(1'000 * (1 + thread::index()));
  params.woke_ns[thread::index()] = now_ns();
}

/// Naps a counted number of times, as a bounded polling loop does.
void patient_body(const NapParams& params) {
  for (uint32_t naps = 0; naps < 1'000; ++naps) nap(1'000);
  params.woke_ns[thread::index()] = now_ns();
}
void sleepless_body(const NapParams&) {
  for (;;) nap(1'000);
}

struct TogetherParams {
  uint32_t* word;
  bool comes;
};
/// The lanes of a warp poll together, by a vote, for a word that another warp may store.
void together_body(const TogetherParams& params) {
  if (warp::index() > 0) {
    for (uint32_t naps = 0; naps < 50; ++naps) nap(1'000'000);
    if (params.comes && thread::index() == 32) store<Order::release, Scope::gpu>(params.word, 1);
    return;
  }
  Awaited what{.phase = 5};
  wait_until(
      what,
      [&] {
        const bool came = warp::lane() == 7 && load<Order::acquire, Scope::gpu>(params.word) != 0;
        return warp::ballot(came) != 0;
      },
      [] { return true; });
}

TOKENYARD_DEFINE_HOST_KERNEL(together_kernel, together_body, TogetherParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(ring_kernel, ring_body, RingParams, RingShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(nap_kernel, nap_body, NapParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(patient_kernel, patient_body, NapParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(sleepless_kernel, sleepless_body, NapParams, NoShared, 32)

/// Ranks under one executor, each with a host program that launches its kernel of the ring.
struct Ring {
  static constexpr uint32_t kRanks = 3;

  explicit Ring(simt::Schedule& schedule)
      : executor({.memory = memory, .schedule = schedule, .time = time}) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) table[rank] = &words[rank];
  }

  void program(uint32_t rank, uint32_t rounds) {
    RingParams params{.rank = rank,
                      .ranks = kRanks,
                      .rounds = rounds,
                      .words = table,
                      .wait_context = {.timeout_ns = 1'000'000'000,
                                       .failed = &failed[rank],
                                       .abort_flag = &abort_flag,
                                       .report = &reports[rank]},
                      .waited_ns = &waited_ns[rank]};
    const auto grid =
        executor.launch(rank, ring_kernel.entry, {.blocks = 1, .threads = 64}, &params);
    executor.host_wait([&] { return grid->running == 0; });
    ++ended;
  }
  void run(uint32_t rounds) {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      executor.spawn_host(rank, [this, rank, rounds] { program(rank, rounds); });
    executor.run([this] { return ended == kRanks - stopped; });
  }

  DirectMemory memory;
  JumpingTime time;
  Executor executor;
  uint32_t words[kRanks] = {};
  uint32_t* table[kRanks] = {};
  uint32_t failed[kRanks] = {};
  WaitReport reports[kRanks] = {};
  uint64_t waited_ns[kRanks] = {};
  AbortWord abort_flag = kNoAbort;
  uint32_t ended = 0, stopped = 0;
};

TEST(Executor, RunsRanksAndTheirProgramsTogetherInAnyOrder) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Shuffled schedule(seed);
    Ring ring(schedule);
    ring.run(10);
    EXPECT_EQ(ring.words[0], 10 * Ring::kRanks) << seed;
    for (const uint32_t failed : ring.failed) EXPECT_EQ(failed, 0u) << seed;
  }
}

TEST(Executor, ADeadlineOfVirtualTimeNamesTheRankThatWasStopped) {
  simt::RoundRobin schedule;
  Ring ring(schedule);
  ring.executor.stop_rank(1);
  ring.stopped = 1;
  ring.run(3);  // Waits for a second of virtual time, which takes no real time.
  EXPECT_EQ(ring.failed[0], static_cast<uint32_t>(Failure::deadline));
  EXPECT_EQ(ring.failed[2], static_cast<uint32_t>(Failure::deadline));
  EXPECT_EQ(ring.reports[2].rank, 1u);
  EXPECT_EQ(ring.reports[2].phase, 4u);
  EXPECT_EQ(ring.reports[2].expected, 2u);
  EXPECT_EQ(ring.reports[2].seen, 0u);
  EXPECT_GE(ring.waited_ns[2], 1'000'000'000u);
}

TEST(Executor, NapsEndInTheirOrder) {
  DirectMemory memory;
  simt::RoundRobin schedule;
  JumpingTime time;
  Executor executor({.memory = memory, .schedule = schedule, .time = time});
  uint64_t woke_ns[32] = {};
  const NapParams params{.woke_ns = woke_ns};
  const auto grid = executor.launch(0, nap_kernel.entry, {.blocks = 1, .threads = 32}, &params);
  executor.run([&] { return grid->running == 0; });
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(woke_ns[t], 1'000 + 1'000 * (1 + t));
}

/// A thread may nap many times before it gives up; only endless naps are a deadlock.
TEST(Executor, NapsThatAreCountedAreNoDeadlock) {
  DirectMemory memory;
  simt::RoundRobin schedule;
  JumpingTime time;
  Executor executor({.memory = memory, .schedule = schedule, .time = time});
  uint64_t woke_ns[32] = {};
  const NapParams params{.woke_ns = woke_ns};
  const auto run = [&](const Kernel<NapParams>& kernel) {
    const auto grid = executor.launch(0, kernel.entry, {.blocks = 1, .threads = 32}, &params);
    executor.run([&] { return grid->running == 0; });
  };
  run(patient_kernel);
  EXPECT_EQ(woke_ns[0], 1'001'000u);
  EXPECT_THROW(run(sleepless_kernel), simt::Deadlock);
}

/// Each poll is a warp vote, but a vote in which no lane has seen anything is no progress.
TEST(Executor, LanesThatLookTogetherSleepTogether) {
  for (const bool comes : {true, false}) {
    DirectMemory memory;
    simt::RoundRobin schedule;
    JumpingTime time;
    Executor executor({.memory = memory, .schedule = schedule, .time = time});
    uint32_t word = 0;
    const TogetherParams params{.word = &word, .comes = comes};
    const auto grid =
        executor.launch(0, together_kernel.entry, {.blocks = 1, .threads = 64}, &params);
    const auto run = [&] { executor.run([&] { return grid->running == 0; }); };
    if (comes)
      run();
    else
      EXPECT_THROW(run(), simt::Deadlock);
  }
}

TEST(Executor, SaysWhenHostProgramsWaitForEver) {
  simt::RoundRobin schedule;
  DirectMemory memory;
  JumpingTime time;
  Executor executor({.memory = memory, .schedule = schedule, .time = time});
  executor.spawn_host(2, [&] { executor.host_wait([] { return false; }); });
  try {
    executor.run([] { return false; });
    FAIL() << "it ended";
  } catch (const simt::Deadlock& error) {
    EXPECT_THAT(error.what(), HasSubstr("host program of rank 2: a host-side condition"));
  }
}

TEST(Executor, ThrowsWhatAHostProgramThrew) {
  simt::RoundRobin schedule;
  DirectMemory memory;
  JumpingTime time;
  Executor executor({.memory = memory, .schedule = schedule, .time = time});
  executor.spawn_host(0, [] { throw InvalidArgument("tokens", "at most 4", "5"); });
  EXPECT_THROW(executor.run([] { return false; }), InvalidArgument);
  EXPECT_EQ(Executor::current(), nullptr);
}

}  // namespace

}  // namespace tokenyard::testing
