// Waits end for those that watch, and the error says why.
#include "fabric/abort_flag.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "fabric/manual_accelerator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {
namespace {

using ::testing::ElementsAre;

class AbortFlags : public ::testing::Test {
 protected:
  ManualAccelerator accelerator_;
  AbortFlag flag_{accelerator_, 3};
  std::array<AbortWord, 3> one_{}, another_{};
};

TEST_F(AbortFlags, AGoodbyeIsToldToAllThatWatchThatRank) {
  flag_.watch(one_);
  flag_.watch(another_);
  flag_.left(1);
  EXPECT_THAT(one_, ElementsAre(0, kLeft, 0));
  EXPECT_THAT(another_, ElementsAre(0, kLeft, 0));
  flag_.unwatch(one_);
  flag_.lost(2);
  EXPECT_THAT(one_, ElementsAre(0, kLeft, 0));
  EXPECT_THAT(another_, ElementsAre(0, kLeft, abort_for_lost(2)));
  std::array<AbortWord, 3> late{};
  flag_.watch(late);
  EXPECT_THAT(late, ElementsAre(0, kLeft, abort_for_lost(2)));
  flag_.cancel();
  EXPECT_THAT(another_, ElementsAre(kCancelled, kCancelled, kCancelled));
}

TEST_F(AbortFlags, AWaitThatTheFlagHasEndedSaysWhy) {
  ErrorRecord record(accelerator_, flag_);
  const std::array<std::string, 2> phases{"counts", "rows"};
  EXPECT_NO_THROW(record.check(phases));
  WaitReport& report = *record.wait_context({}).report;
  report.rank = 2;
  report.phase = 1;
  report.failure = static_cast<uint32_t>(Failure::abort_flag);
  flag_.lost(1);
  try {
    record.check(phases);
    FAIL();
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.facts.rank, 1u);
    EXPECT_EQ(error.facts.phase, "rows");
  }
  flag_.cancel();
  EXPECT_THROW(record.check(phases), Cancelled);
  record.clear();
  EXPECT_FALSE(record.failed());
  EXPECT_NO_THROW(record.check(phases));
}

}  // namespace
}  // namespace tokenyard
