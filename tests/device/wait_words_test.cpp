/// The words that wait.
#include <gtest/gtest.h>

#include <algorithm>

#include "device/accelerators.hpp"
#include "device/device_array.hpp"
#include "device/wait_context_cell.hpp"
#include "device/wait_kernels.hpp"

namespace tokenyard::testing {

namespace {

class WaitWords : public OnAccelerator {};
INSTANTIATE_ON_ACCELERATORS(WaitWords);

constexpr uint32_t kBlocks = 3, kThreads = 64;

/// Returns 1 for each thread whose wait succeeded. Threads of block 0 do not wait.
std::vector<uint32_t> run_waits(Accelerator& accelerator, WaitContextCell& wait_context,
                                uint32_t value, bool refuses = false) {
  DeviceArray<uint32_t> flag(accelerator, 1);
  DeviceArray<uint32_t> waited(accelerator, std::vector<uint32_t>(kBlocks * kThreads, 2));
  launch(accelerator, wait_kernel, {.blocks = kBlocks, .warps = kThreads / 32}, {},
         {.wait_context = wait_context.wait_context,
          .flag = flag.data(),
          .value = value,
          .waited = waited.data(),
          .refuses = refuses});
  auto results = waited.read();
  results.erase(results.begin(), results.begin() + kThreads);
  return results;
}

const std::vector<uint32_t> kAllSucceeded((kBlocks - 1) * kThreads, 1);
const std::vector<uint32_t> kAllFailed((kBlocks - 1) * kThreads, 0);

TEST_P(WaitWords, AWaitEndsWhenItsConditionHolds) {
  WaitContextCell wait_context(*accelerator, std::chrono::seconds(10));
  EXPECT_EQ(run_waits(*accelerator, wait_context, 7), kAllSucceeded);
  EXPECT_EQ(wait_context.failure(), Failure::none);
  EXPECT_EQ(wait_context.report().failure, 0u);
}

TEST_P(WaitWords, ADeadlineEndsAllWaitsWithOneReport) {
  WaitContextCell wait_context(*accelerator, std::chrono::milliseconds(20));
  EXPECT_EQ(run_waits(*accelerator, wait_context, 6), kAllFailed);
  EXPECT_EQ(wait_context.failure(), Failure::deadline);
  const WaitReport report = wait_context.report();
  EXPECT_EQ(report.failure, static_cast<uint32_t>(Failure::deadline));
  EXPECT_EQ(report.phase, 3u);
  EXPECT_EQ(report.rank, 5u);
  EXPECT_GE(report.block, 1u);
  EXPECT_EQ(report.expected, 7u);
  EXPECT_EQ(report.seen, 6u);
  EXPECT_GE(report.waited_ns, 20'000'000u);
}

TEST_P(WaitWords, TheAbortFlagEndsWaitsBeforeTheirDeadline) {
  WaitContextCell wait_context(*accelerator, std::chrono::seconds(600));
  wait_context.set(abort_for_lost(1));
  EXPECT_EQ(run_waits(*accelerator, wait_context, 6), kAllFailed);
  EXPECT_EQ(wait_context.report().failure, static_cast<uint32_t>(Failure::abort_flag));
  EXPECT_EQ(wait_context.report().seen, 6u);
}

/// The number of a poll at which a wait reads the abort flag, on a GPU too.
constexpr uint32_t kListens = 4096;

bool wait_for_leaving(Accelerator& accelerator, WaitContextCell& wait_context, uint32_t arrives,
                      bool from_rank = true) {
  const DeviceArray<uint32_t> waited(accelerator, std::vector<uint32_t>{2});
  launch(accelerator, leaving_kernel, {.blocks = 1, .warps = 1}, {},
         {.wait_context = wait_context.wait_context,
          .abort_flag = wait_context.abort_flag(),
          .goodbye = kListens,
          .arrives = arrives,
          .from_rank = from_rank,
          .waited = waited.data()});
  return waited.read()[0] == 1;
}

TEST_P(WaitWords, AGoodbyeEndsAWaitForItsRank) {
  WaitContextCell wait_context(*accelerator, std::chrono::seconds(600));
  EXPECT_FALSE(wait_for_leaving(*accelerator, wait_context, UINT32_MAX));
  EXPECT_EQ(wait_context.failure(), Failure::left);
  const WaitReport report = wait_context.report();
  EXPECT_EQ(report.failure, static_cast<uint32_t>(Failure::left));
  EXPECT_EQ(report.rank, 5u);
  EXPECT_EQ(report.seen, kListens + 1) << "polls: one after the goodbye was seen";
}

TEST_P(WaitWords, WhatARankStoredBeforeItsGoodbyeIsFound) {
  WaitContextCell wait_context(*accelerator, std::chrono::seconds(600));
  EXPECT_TRUE(wait_for_leaving(*accelerator, wait_context, kListens + 1));
  EXPECT_EQ(wait_context.failure(), Failure::none);
}

TEST_P(WaitWords, AGoodbyeEndsNoWaitThatOthersCouldEnd) {
  WaitContextCell wait_context(*accelerator, std::chrono::seconds(600));
  EXPECT_TRUE(wait_for_leaving(*accelerator, wait_context, 3 * kListens, false));
  EXPECT_EQ(wait_context.failure(), Failure::none);
}

TEST_P(WaitWords, AGoodbyeOfAnotherRankEndsNoWait) {
  WaitContextCell wait_context(*accelerator, std::chrono::milliseconds(200));
  wait_context.leave(4);
  EXPECT_EQ(run_waits(*accelerator, wait_context, 6), kAllFailed);
  EXPECT_EQ(wait_context.failure(), Failure::deadline);
}

TEST_P(WaitWords, ALoopWithoutWaitsMayHeedTheAbortFlag) {
  for (const bool aborts : {false, true}) {
    WaitContextCell wait_context(*accelerator, std::chrono::seconds(600));
    if (aborts) wait_context.set(kCancelled);
    const DeviceArray<uint32_t> turns(*accelerator, 1);
    launch(*accelerator, loop_kernel, {.blocks = 1, .warps = 1}, {},
           {.wait_context = wait_context.wait_context, .most = 5, .turns = turns.data()});
    EXPECT_EQ(turns.read()[0], aborts ? 0u : 5u);
    EXPECT_EQ(wait_context.failure(), aborts ? Failure::abort_flag : Failure::none);
    EXPECT_EQ(wait_context.report().rank, aborts ? 4u : 0u);
  }
}

TEST_P(WaitWords, AKernelMayRefuseAndThenNobodyWaits) {
  WaitContextCell wait_context(*accelerator, std::chrono::seconds(600));
  EXPECT_EQ(run_waits(*accelerator, wait_context, 7, true), kAllFailed);
  EXPECT_EQ(wait_context.failure(), Failure::refused);
  EXPECT_EQ(wait_context.report().seen, 99u);
  EXPECT_EQ(wait_context.report().block, 0u);
}

TEST_P(WaitWords, AFailedCallStaysFailedAndKeepsItsFirstReport) {
  WaitContextCell wait_context(*accelerator, std::chrono::milliseconds(5));
  run_waits(*accelerator, wait_context, 6);
  const uint64_t waited_ns = wait_context.report().waited_ns;
  EXPECT_EQ(run_waits(*accelerator, wait_context, 5), kAllFailed);
  EXPECT_EQ(wait_context.report().seen, 6u);
  EXPECT_EQ(wait_context.report().waited_ns, waited_ns);
}

TEST_P(WaitWords, ACalmCallIsNotDisturbedByAConditionThatHolds) {
  // The condition is checked first: a wait whose word has arrived succeeds even after the deadline.
  WaitContextCell wait_context(*accelerator, std::chrono::nanoseconds(0));
  DeviceArray<uint32_t> flag(*accelerator, std::vector<uint32_t>{7});
  DeviceArray<uint32_t> waited(*accelerator, std::vector<uint32_t>(2 * kThreads, 2));
  launch(*accelerator, wait_kernel, {.blocks = 2, .warps = kThreads / 32}, {},
         {.wait_context = wait_context.wait_context,
          .flag = flag.data(),
          .value = 7,
          .waited = waited.data(),
          .refuses = 0});
  const auto results = waited.read();
  EXPECT_EQ(std::count(results.begin() + kThreads, results.end(), 1u), kThreads);
  EXPECT_EQ(wait_context.failure(), Failure::none);
}

TEST_P(WaitWords, TimeGoesOnAndNapsTakeSome) {
  DeviceArray<uint64_t> ns(*accelerator, 3), cycles(*accelerator, 2);
  launch(*accelerator, time_kernel, {}, {}, {.ns = ns.data(), .cycles = cycles.data()});
  const auto times = ns.read();
  EXPECT_GT(times[1], times[0]);
  EXPECT_GE(times[2], times[1]);
  EXPECT_GT(cycles.read()[1], cycles.read()[0]);
}

TEST_P(WaitWords, KernelsOfAStreamRunInTheirOrder) {
  DeviceArray<uint32_t> value(*accelerator, 1);
  for (int run = 0; run < 5; ++run)
    launch(*accelerator, chain_kernel, {.cooperative = false, .overlap_previous = run > 0}, {},
           {.value = value.data()});
  EXPECT_EQ(value.read()[0], 121u);  // 0, 1, 4, 13, 40, 121
}

}  // namespace

}  // namespace tokenyard::testing
