// The membership's protocol as stories: something happens to named ranks, and all others agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/simulated/job.hpp"

namespace tokenyard::collectives::simulated {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

/// Ranks run operations all the time; between two happenings some pass.
struct Story {
  explicit Story(JobOptions options) : job(options, 1, trace) { job.run(milliseconds(100)); }

  std::vector<Slot> members() const {
    std::vector<Slot> slots;
    for (const Member& member : job.newest().members) slots.push_back(member.slot);
    return slots;
  }
  Epoch epoch() const { return job.newest().epoch; }
  /// Every survivor has begun the newest epoch, and they get things done in it.
  void expect_work_goes_on() {
    const uint64_t before = job.commits.commits();
    EXPECT_TRUE(job.run_until_it([&] { return job.commits.commits() > before + 20; }, seconds(5)));
    for (Process* process : job.survivors())
      EXPECT_EQ(process->machine.view(), job.newest()) << "slot " << process->self.slot;
  }

  simulation::Trace trace;
  Job job;
};

TEST(Membership, NothingHappensWhileNothingHappens) {
  Story story({.ranks = 4});
  story.job.run(seconds(20));
  EXPECT_EQ(story.epoch(), 1u);
  story.expect_work_goes_on();
}

TEST(Membership, ADeadRankIsOutAtOnce) {
  for (Slot slot = 0; slot < 4; ++slot) {
    Story story({.ranks = 4});
    story.job.kill(story.job.at(slot));
    story.job.run(milliseconds(20));
    EXPECT_EQ(story.epoch(), 2u);
    EXPECT_EQ(story.members().size(), 3u);
    story.expect_work_goes_on();
  }
}

TEST(Membership, ASilentRankIsOutAfterAWhile) {
  Story story({.ranks = 4});
  story.job.kill(story.job.at(0), false);
  story.job.run(milliseconds(350));
  EXPECT_EQ(story.epoch(), 1u);
  story.job.run(milliseconds(200));
  EXPECT_THAT(story.members(), ElementsAre(1, 2, 3));
  story.expect_work_goes_on();
}

}  // namespace
}  // namespace tokenyard::collectives::simulated
