/// When a wait times out for a rank that shows signs of life, or none.
#include <gtest/gtest.h>

#include "expert_parallel/low_latency/kernels/liveness_timeout.hpp"

namespace tokenyard::low_latency {
namespace {

constexpr uint32_t kTimeout = 1000, kNow = 1200;

/// At any value of the 32-bit clock.
class LowLatencyTimeouts : public testing::TestWithParam<uint32_t> {};

TEST_P(LowLatencyTimeouts, WhoWasNotHeardHasTheTimeout) {
  const uint32_t clock = GetParam();
  EXPECT_EQ(end_of_wait(clock - kNow - 1, kNow, clock, kTimeout), kTimeout);
  EXPECT_EQ(end_of_wait(clock - (1u << 31), kNow, clock, kTimeout), kTimeout);
}

TEST_P(LowLatencyTimeouts, WhoWasHeardHasItAnewWithinLimits) {
  const uint32_t clock = GetParam();
  EXPECT_EQ(end_of_wait(clock - 100, kNow, clock, kTimeout), 2100u);
  EXPECT_EQ(end_of_wait(clock - kNow, kNow, clock, kTimeout), kTimeout);
  EXPECT_EQ(end_of_wait(clock - 100, 9 * kTimeout, clock, kTimeout), kTimesLate * kTimeout);
}

/// A thread whose deadline had passed masked a rank whose heartbeat another thread had read a
/// moment after this one read the clock: the unsigned difference was the largest possible.
TEST_P(LowLatencyTimeouts, WhoIsHeardMeanwhileIsAlive) {
  const uint32_t clock = GetParam();
  EXPECT_EQ(end_of_wait(clock, kNow, clock, kTimeout), kNow + kTimeout);
  EXPECT_EQ(end_of_wait(clock + 1, kNow, clock, kTimeout), kNow + kTimeout);
}

INSTANTIATE_TEST_SUITE_P(Clocks, LowLatencyTimeouts, testing::Values(5000u, 50u, UINT32_MAX - 5),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace tokenyard::low_latency
