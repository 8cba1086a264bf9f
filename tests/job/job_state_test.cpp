/// The state of a job on one rank: its options, waits and news, with a control plane that the test
/// speaks for.
#include "job/job_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "job/job_of_three.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using Clock = std::chrono::steady_clock;

constexpr control::Member kOther{1, 7};

/// Slot 0 of two, whose other slot is empty.
struct AloneInItsJob : ::testing::Test {
  AloneInItsJob() : job(Job::alone(options())), state(*job->state()) {}

  JobOptions options() {
    JobOptions options;
    options.address = "127.0.0.1";
    options.rank = 0;
    options.size = 2;
    options.interrupt = [this] {
      if (on_wait) on_wait();
    };
    return options;
  }
  control::Participant& participant() { return state; }
  /// Begins the next epoch, of this rank and `others`.
  void install(const std::vector<control::Member>& others) {
    control::View next = state.engine().view();
    ++next.epoch;
    std::erase_if(next.members, [](const control::Member& member) { return member.slot != 0; });
    next.members.insert(next.members.end(), others.begin(), others.end());
    participant().install({.next = next, .groups = {}, .lost = {}, .left = {}}, {});
  }
  /// Has another member, whose connection has ended.
  void lose_another() {
    install({kOther});
    state.ranks().came(kOther);
    state.ranks().gone(kOther.slot, false);
  }

  std::function<void()> on_wait;  ///< called by waits
  const std::shared_ptr<Job> job;
  Job::State& state;
};

TEST(JobState, ChecksItsOptions) {
  const auto refused = [](const std::function<void(JobOptions&)>& change,
                          JobTerms::Entrance entrance = JobTerms::Entrance::found) {
    JobOptions options;
    options.size = 3;
    options.size_max = 4;
    change(options);
    try {
      const Job::State state(options, {.entrance = entrance});
    } catch (const InvalidArgument& error) {
      return error.argument;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused([](JobOptions& options) { options.size = 0; }), "size");
  const auto in_a_further_slot = [](JobOptions& options) {
    options.rank = 3;
    options.timeout = 0s;
  };
  EXPECT_EQ(refused(in_a_further_slot), "rank");
  EXPECT_EQ(refused(in_a_further_slot, JobTerms::Entrance::join), "timeout") << "it may join there";
  EXPECT_EQ(refused([](JobOptions& options) { options.rank = 4; }, JobTerms::Entrance::join),
            "rank");
  EXPECT_EQ(refused([](JobOptions& options) { options.timeout = 0s; }), "timeout");
  EXPECT_EQ(refused([](JobOptions& options) { options.interrupt = nullptr; }), "interrupt");
}

TEST_F(AloneInItsJob, NamesTheRankThatDoesNotComeInTime) {
  try {
    job->recover(true, 50ms);
    ADD_FAILURE() << "nobody comes";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 1u);
    EXPECT_LT(error.facts.waited_s, 20) << "the job's own timeout is 30 s";
  }
}

TEST_F(AloneInItsJob, SaysThatTooFewAnswer) {
  participant().quorum_missing({0}, 2);
  EXPECT_THROW(job->recover(true, 50ms), QuorumLost);
  control::View seen = state.ranks().view();
  seen.members.push_back(kOther);
  state.ranks().install({.next = seen, .groups = {}, .lost = {}, .left = {}});
  participant().quorum_missing({0}, 2);
  simt::HostAccelerator accelerator([] {});
  EXPECT_THROW(state.ranks().evict(seen, std::array{kOther.slot}, seen.epoch, accelerator,
                                   accelerator.now() + 50ms, [] {}),
               QuorumLost);
}

TEST_F(AloneInItsJob, WaitsEndWhenItsMembershipDoes) {
  on_wait = [this] { job->cancel(); };
  EXPECT_THROW(job->recover(true, 20s), Cancelled);
  EXPECT_THROW(state.check_ended(), Cancelled);
}

TEST_F(AloneInItsJob, HasNothingToAgreeOnWhereNobodyIsGone) {
  EXPECT_FALSE(state.await_verdict_on_gone(Clock::now()));
  install({kOther});
  state.ranks().came(kOther);
  EXPECT_FALSE(state.await_verdict_on_gone(Clock::now()));
}

TEST_F(AloneInItsJob, AwaitsTheEpochWithoutWhoIsGone) {
  lose_another();
  try {
    state.await_verdict_on_gone(Clock::now() + 50ms);
    ADD_FAILURE() << "nobody agrees";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, kOther.slot);
  }
  on_wait = [this] {
    install({});
    on_wait = nullptr;
  };
  EXPECT_TRUE(state.await_verdict_on_gone(Clock::now() + 20s));
}

/// The ranks learn of an epoch first; calls need the engine's.
TEST_F(AloneInItsJob, AwaitsTheEngineOfTheSameEpoch) {
  control::View next = state.ranks().view();
  ++next.epoch;
  state.ranks().install({.next = next, .groups = {}, .lost = {}, .left = {}});
  EXPECT_THROW(state.await_verdict_on_gone(Clock::now() + 50ms), PeerTimeout);
}

TEST_F(AloneInItsJob, AnEndEndsTheWaitForAVerdict) {
  lose_another();
  on_wait = [this] { job->cancel(); };
  EXPECT_THROW(state.await_verdict_on_gone(Clock::now() + 20s), Cancelled);
}

TEST_F(AloneInItsJob, SaysThatTooFewAnswerForAVerdict) {
  lose_another();
  participant().quorum_missing({0}, 2);
  EXPECT_THROW(state.await_verdict_on_gone(Clock::now() + 50ms), QuorumLost);
}

TEST_F(AloneInItsJob, NotesItsRecoveriesAndTheirEpoch) {
  job->recover();
  EXPECT_EQ(state.recoveries().calls, 1u);
  EXPECT_EQ(state.recoveries().epoch, 1u);
  install({});
  job->recover();
  EXPECT_EQ(state.recoveries().calls, 2u);
  EXPECT_EQ(state.recoveries().epoch, 2u);
}

TEST_F(AloneInItsJob, CountsTheEpochThatHasBegun) {
  install({kOther});
  EXPECT_EQ(job->metrics().epoch, 2u);
  EXPECT_THAT(job->metrics().active, ElementsAre(0, 1));
}

TEST_F(AloneInItsJob, TellsNobodyWhoHasStoppedListening) {
  std::promise<void> first, second;
  auto listening = job->on_change([&] { first.set_value(); });
  install({kOther});
  ASSERT_EQ(first.get_future().wait_for(60s), std::future_status::ready);
  listening = job->on_change([&] { second.set_value(); });  // A second call of the first throws.
  install({});
  ASSERT_EQ(second.get_future().wait_for(60s), std::future_status::ready);
}

class JobWithNewcomers : public test::JobOfThree {};

TEST_F(JobWithNewcomers, ARankForWhichTwoWaitIsNamedOnceAndGrowingLetsOneIn) {
  JobOptions mine = options(0);
  mine.size = 1;
  mine.size_max = 2;
  const auto job = Job::connect(mine);
  std::atomic<bool> over = false;
  std::atomic<int> came = 0;
  const auto newcomer = [&] {
    JobOptions theirs = options(1);
    theirs.size = 1;
    theirs.size_max = 2;
    theirs.timeout = 60s;
    theirs.interrupt = [&] {
      if (over) throw std::logic_error("the test is over");
    };
    try {
      const auto joined = Job::join(theirs);
      ++came;
      while (!over) std::this_thread::sleep_for(5ms);
    } catch (const std::logic_error&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  };
  std::vector<std::jthread> newcomers;
  for (int number = 0; number < 2; ++number) newcomers.emplace_back(newcomer);
  control::Control& control = job->state()->control();
  for (const auto end = Clock::now() + 60s; control.waiting().size() < 2 && Clock::now() < end;)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(control.waiting().size(), 2u);
  EXPECT_THAT(job->waiting(), ElementsAre(1));
  job->grow(1);
  EXPECT_THAT(job->active_ranks(), ElementsAre(0, 1));
  for (const auto end = Clock::now() + 60s; came == 0 && Clock::now() < end;)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(came, 1);
  over = true;
}

TEST_F(JobWithNewcomers, AWaitForOthersEndsWithItsInterruptAndItsTimeout) {
  JobOptions mine = options(0);
  mine.interrupt = [] { throw std::logic_error("Ctrl-C"); };
  EXPECT_THROW(Job::connect(mine), std::logic_error);
  mine = options(0);
  mine.job = "another";
  mine.timeout = 100ms;
  try {
    Job::connect(mine);
    ADD_FAILURE() << "nobody comes";
  } catch (const PeerTimeout& error) {
    EXPECT_LT(error.facts.waited_s, 20) << "without the option it is 30 s";
  }
}

TEST_F(JobWithNewcomers, ARankWhoseJobEndsSaysGoodbye) {
  test::Meeting met(3), counted(2);
  test::on_ranks_that_meet(3, {&met, &counted}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    met.arrive_and_wait();
    if (rank == 2) return;
    for (const auto end = Clock::now() + 60s; Clock::now() < end;) {
      if (job->active_ranks().size() == 2) break;
      std::this_thread::sleep_for(5ms);
    }
    const JobMetrics metrics = job->metrics();
    EXPECT_EQ(metrics.left, 1u);
    EXPECT_EQ(metrics.lost, 0u);
    counted.arrive_and_wait();
  });
}

}  // namespace
}  // namespace tokenyard
