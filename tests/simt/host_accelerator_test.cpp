/// Real runs: kernels on fibers, with one OS thread per rank.
#include "simt/host_accelerator.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "device/device.hpp"
#include "device/device_array.hpp"
#include "device/wait_context_cell.hpp"
#include "simt/sanitizers.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::testing {

namespace {

struct CrowdParams {
  uint32_t* here;    ///< [1] threads that have arrived
  uint32_t* passed;  ///< [1] threads that saw all the others
  WaitContext wait_context;
};

/// Every thread of the grid waits for all others, so all must be alive at once.
void crowd_body(const CrowdParams& params) {
  const uint32_t all = grid::blocks() * block::threads();
  const Deadline deadline = params.wait_context.start();
  add<Order::release, Scope::gpu>(params.here, 1u);
  Awaited what{.expected = all};
  const bool complete = wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::gpu>(params.here);
    return what.seen == what.expected;
  });
  if (complete) add<Order::relaxed, Scope::gpu>(params.passed, 1u);
}

/// Ranks 0 and 1 pass a number to and fro; each has a word that the other writes.
struct PingPongParams {
  uint32_t rank, turns;
  PeerArray<uint32_t> words;
  WaitContext wait_context;
};
void ping_pong_body(const PingPongParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  for (uint32_t turn = 1; turn <= params.turns; ++turn) {
    if (params.rank == 0) store<Order::release, Scope::sys>(params.words.of(1), turn);
    Awaited what{.phase = turn, .rank = 1 - params.rank, .expected = turn};
    if (!wait_until(deadline, what, [&] {
          what.seen = load<Order::acquire, Scope::sys>(params.words.mine());
          return what.seen == what.expected;
        }))
      return;
    if (params.rank == 1) store<Order::release, Scope::sys>(params.words.of(0), turn);
  }
}

TOKENYARD_DEFINE_HOST_KERNEL(crowd_kernel, crowd_body, CrowdParams, NoShared, 1024)
TOKENYARD_DEFINE_HOST_KERNEL(ping_pong_kernel, ping_pong_body, PingPongParams, NoShared, 32)

/// Returns the number of threads that saw all the others.
uint32_t run_crowd(Accelerator& accelerator, uint32_t blocks, uint32_t warps) {
  DeviceArray<uint32_t> here(accelerator, 1), passed(accelerator, 1);
  WaitContextCell wait_context(accelerator, std::chrono::seconds(100));
  launch(accelerator, crowd_kernel, {.blocks = blocks, .warps = warps}, {},
         {.here = here.data(), .passed = passed.data(), .wait_context = wait_context.wait_context});
  EXPECT_EQ(wait_context.failure(), Failure::none);
  return passed.read()[0];
}

TEST(HostAccelerator, RunsTensOfThousandsOfThreadsAtOnce) {
#if TOKENYARD_ASAN || TOKENYARD_TSAN
  constexpr uint32_t kBlocks = 4;  // Sanitizers need much more memory per thread.
#else
  constexpr uint32_t kBlocks = 64;  // 65,536 threads: more than guard pages would allow.
#endif
  simt::HostAccelerator accelerator([] {});
  EXPECT_EQ(run_crowd(accelerator, kBlocks, 32), kBlocks * 1024);
}

TEST(HostAccelerator, RunsManyKernelsOneAfterTheOther) {
  simt::HostAccelerator accelerator([] {});
  for (int run = 0; run < 50; ++run) EXPECT_EQ(run_crowd(accelerator, 2, 2), 128u);
}

TEST(HostAccelerator, IsMadeAndDroppedAgainAndAgain) {
  for (int run = 0; run < 200; ++run) {
    simt::HostAccelerator accelerator([] {});
    EXPECT_EQ(run_crowd(accelerator, 1, 2), 64u);
  }
}

TEST(HostAccelerator, LetsRanksOnOtherThreadsAnswer) {
  constexpr uint32_t kTurns = 200;
  simt::HostAccelerator home([] {});
  DeviceArray<uint32_t> words(home, 64);  // One word per rank, in different cache lines.
  std::vector<uint32_t*> table{words.data(), words.data() + 32};
  const auto play = [&](uint32_t rank) {
    simt::HostAccelerator accelerator([] {});
    WaitContextCell wait_context(accelerator, std::chrono::seconds(100));
    launch(accelerator, ping_pong_kernel, {}, {},
           {.rank = rank,
            .turns = kTurns,
            .words = {.table = table.data(), .self = rank},
            .wait_context = wait_context.wait_context});
    EXPECT_EQ(wait_context.failure(), Failure::none) << "rank " << rank;
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(words.read()[0], kTurns);
  EXPECT_EQ(words.read()[32], kTurns);
}

TEST(HostAccelerator, TheInterruptEndsAKernelThatWaits) {
  struct Interrupted : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  bool armed = true;
  simt::HostAccelerator accelerator([&] {
    if (armed) throw Interrupted("Ctrl-C");
  });
  DeviceArray<uint32_t> words(accelerator, 64);
  std::vector<uint32_t*> table{words.data(), words.data() + 32};
  WaitContextCell wait_context(accelerator, std::chrono::seconds(600));
  const auto wait_for_nobody = [&] {
    launch(accelerator, ping_pong_kernel, {}, {},
           {.rank = 0,
            .turns = 1,
            .words = {.table = table.data(), .self = 0},
            .wait_context = wait_context.wait_context});
  };
  EXPECT_THROW(wait_for_nobody(), Interrupted);
  EXPECT_THROW(
      accelerator.wait_until(Clock::now() + std::chrono::seconds(600), [] { return false; }),
      Interrupted);
  // The abandoned run leaves nothing behind.
  armed = false;
  EXPECT_EQ(run_crowd(accelerator, 2, 1), 64u);
}

TEST(HostAccelerator, HostWaitsEndWithTheirConditionOrTheirDeadline) {
  simt::HostAccelerator accelerator([] {});
  std::atomic<bool> ready = false;
  std::thread setter([&] { ready = true; });
  EXPECT_TRUE(accelerator.wait_until(Clock::now() + std::chrono::seconds(100),
                                     [&] { return ready.load(); }));
  setter.join();
  EXPECT_FALSE(
      accelerator.wait_until(Clock::now() + std::chrono::milliseconds(5), [] { return false; }));
}

TEST(HostAccelerator, RefusesShapesThatNoGpuWouldTake) {
  simt::HostAccelerator accelerator([] {});
  const CrowdParams params{};
  const auto refuses = [&](LaunchShape shape, const std::string& argument) {
    try {
      launch(accelerator, crowd_kernel, shape, {}, params);
    } catch (const InvalidArgument& error) {
      return error.argument == argument;
    }
    return false;
  };
  EXPECT_TRUE(refuses({.blocks = 0}, "blocks"));
  EXPECT_TRUE(refuses({.warps = 0}, "warps"));
  EXPECT_TRUE(refuses({.warps = 33}, "warps"));
  EXPECT_TRUE(refuses({.extra_shared_bytes = 1 << 20}, "shared memory of crowd_kernel"));
}

TEST(HostAccelerator, MemoryIsZeroedAlignedAndCopied) {
  simt::HostAccelerator accelerator([] {});
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20}) {
    auto* memory = static_cast<std::byte*>(accelerator.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(memory[i], std::byte{0});
    accelerator.fill(memory, 0x5a, bytes, {});
    std::vector<std::byte> out(bytes);
    accelerator.copy(out.data(), memory, bytes, {});
    EXPECT_EQ(out, std::vector<std::byte>(bytes, std::byte{0x5a}));
    accelerator.free(memory);
  }
}

TEST(Words, OutsideAKernelAreAnError) {
  uint32_t word = 0;
  EXPECT_THROW((load<Order::relaxed, Scope::gpu>(&word)), InternalError);
}

}  // namespace

}  // namespace tokenyard::testing
