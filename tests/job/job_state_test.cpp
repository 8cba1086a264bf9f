/// The state of a job on one rank: its options, waits and news, with a control plane that the test
/// speaks for.
#include "job/job_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "control/memory_store.hpp"
#include "fabric/world_access.hpp"
#include "job/job_of_three.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/collectives.hpp"

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
  EXPECT_EQ(refused([](JobOptions& options) { options.eager_limit = eager_limit_max + 1; }),
            "eager_limit");
  EXPECT_EQ(refused([](JobOptions& options) { options.interrupt = nullptr; }), "interrupt");
}

TEST(JobState, PassesItsOptionsOnToItsControlPlane) {
  JobOptions options;
  options.store = "file:/of/this/test";
  options.host_store = false;
  options.own_store = std::make_shared<control::MemoryStore>();
  options.job = "job";
  options.secret = "secret";
  options.rank = 1;
  options.size = 2;
  options.size_max = 5;
  options.address = "10.0.0.7";
  options.timeout = 7s;
  options.silence = 3s;
  options.on_failure = OnFailure::exclude;
  options.witness = false;
  bool is_asked = false;
  options.interrupt = [&] { is_asked = true; };
  control::ControlOptions control =
      control_options(options, {.witness_in_memory = true, .sole_host = true, .farewell = 11s});
  EXPECT_EQ(control.store, options.store);
  EXPECT_FALSE(control.host_store);
  EXPECT_EQ(control.own_store, options.own_store);
  EXPECT_TRUE(control.sole_host);
  EXPECT_EQ(control.job, "job");
  EXPECT_EQ(control.secret, "secret");
  EXPECT_EQ(control.slot, 1u);
  EXPECT_EQ(control.slots, 2u);
  EXPECT_EQ(control.slots_max, 5u) << "a newcomer looks there for a member";
  EXPECT_EQ(control.address, "10.0.0.7");
  EXPECT_EQ(control.timeout, 7s);
  EXPECT_EQ(control.farewell, 11s);
  EXPECT_EQ(control.membership.silence, 3s);
  EXPECT_FALSE(control.membership.witness);
  EXPECT_TRUE(control.membership.evict_stalled);
  EXPECT_FALSE(control.witness_in_store);
  control.interrupt();
  EXPECT_TRUE(is_asked);
  options.size_max = 0;
  options.address.clear();
  for (const OnFailure on_failure : {OnFailure::raise, OnFailure::retry}) {
    options.on_failure = on_failure;
    control = control_options(options, {});
    EXPECT_FALSE(control.membership.evict_stalled);
  }
  EXPECT_EQ(control.slots_max, 2u);
  EXPECT_FALSE(control.address.empty()) << "found";
  EXPECT_TRUE(control.witness_in_store);
  EXPECT_FALSE(control.sole_host);
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

/// Its state lives on with the work.
TEST(JobState, AJobThatHasEndedHasNoThreadsThoughAWorkIsHeld) {
  const auto entries = [](const char* directory) {
    return std::distance(std::filesystem::directory_iterator(directory), {});
  };
  const auto threads = entries("/proc/self/task");
  JobOptions options;
  options.address = "127.0.0.1";
  auto job = Job::alone(options);
  const Work work = job->collectives()->world().barrier();
  const auto files = entries("/proc/self/fd");
  job.reset();
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_LT(entries("/proc/self/fd"), files) << "its transport's are closed";
}

/// A new listener hears of later changes; older ones hear of this one, too.
TEST_F(AloneInItsJob, WhoBeginsToListenTakesNoNewsFromOthers) {
  std::promise<void> entered, released, told;
  std::atomic<int> calls = 0;
  const auto listening = job->on_change([&] {
    if (++calls > 1) return told.set_value();
    entered.set_value();
    released.get_future().wait_for(60s);
  });
  install({kOther});
  ASSERT_EQ(entered.get_future().wait_for(60s), std::future_status::ready);
  install({});
  const auto later = job->on_change([] {});
  released.set_value();
  EXPECT_EQ(told.get_future().wait_for(60s), std::future_status::ready);
}

class JobWithNewcomers : public test::JobOfThree {
 protected:
  /// Returns whether `condition` comes true.
  static bool until(const std::function<bool()>& condition) {
    for (const auto end = Clock::now() + 60s; Clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  JobOptions options_of_two(uint32_t rank) const {
    JobOptions two = options(rank);
    two.size = 2;
    return two;
  }
};

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

/// A slot's new process once could have brought a register of its own: then two halves of the job
/// would have had a witness each.
TEST_F(JobWithNewcomers, ANewcomerTakesTheWitnessOfTheOthers) {
  const auto job_of = [](const JobOptions& options, JobTerms::Entrance entrance) {
    return std::make_shared<Job>(std::make_shared<Job::State>(
        options, JobTerms{.entrance = entrance, .witness_in_memory = true}));
  };
  const auto witness_after_a_world = [](Job& job) {
    const auto world = job.world("host", {.timeout = 30s, .arena_bytes = 1 << 16});
    struct stat memory = {};
    const bool has_one = fstat(job.state()->witness_memory().native(), &memory) == 0;
    world->barrier("of all that have their witness");
    return has_one ? memory.st_ino : 0;
  };
  test::Meeting used(3), left(3), done(3);
  std::array<ino_t, 3> before = {}, after = {};
  std::future<void> newcomer;
  test::on_ranks_that_meet(3, {&used, &left, &done}, [&](uint32_t rank) {
    const auto job = job_of(options(rank), JobTerms::Entrance::found);
    before[rank] = witness_after_a_world(*job);
    used.arrive_and_wait();
    if (rank == 0) {
      job->leave();
      newcomer = std::async(std::launch::async, [&] {
        const auto joined = job_of(options(0), JobTerms::Entrance::join);
        after[0] = witness_after_a_world(*joined);
        done.wait();
      });
      left.arrive_and_wait();
      done.arrive_and_wait();
      return;
    }
    left.arrive_and_wait();
    job->replace(0);
    after[rank] = witness_after_a_world(*job);
    done.arrive_and_wait();
  });
  newcomer.get();
  EXPECT_NE(before[0], 0u);
  EXPECT_THAT(before, ::testing::Each(before[0]));
  EXPECT_THAT(after, ::testing::Each(before[0]));
}

TEST_F(JobWithNewcomers, UnderRetryAReplacementComesThoughNobodyCalls) {
  test::Meeting met(2), left(2), done(2);
  test::on_ranks_that_meet(2, {&met, &left, &done}, [&](uint32_t rank) {
    JobOptions mine = options_of_two(rank);
    mine.on_failure = OnFailure::retry;
    const auto job = Job::connect(mine);
    met.arrive_and_wait();
    if (rank == 1) job->leave();
    left.arrive_and_wait();
    if (rank == 1) {
      const auto joined = Job::join(mine);
      EXPECT_THAT(joined->active_ranks(), ElementsAre(0, 1));
      done.arrive_and_wait();
      return;
    }
    done.arrive_and_wait();
    EXPECT_EQ(job->metrics().joined, 3u);
  });
}

/// A loss that a world knows of ends the membership, too.
TEST_F(JobWithNewcomers, AgreeToGoOnWithoutARankThatIsGone) {
  test::Meeting met(3), agreed(3);
  test::on_ranks_that_meet(3, {&met, &agreed}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    EXPECT_TRUE(until([&] { return job->state()->control().is_linked_to_all(); }));
    met.arrive_and_wait();
    if (rank == 0) {
      job->state()->ranks().gone(2, false);
      EXPECT_TRUE(job->state()->await_verdict_on_gone(Clock::now() + 60s));
      EXPECT_THAT(job->active_ranks(), ElementsAre(0, 1));
    }
    const auto is_fenced = [&] { return job->active_ranks().empty(); };
    EXPECT_TRUE(rank != 2 || until(is_fenced));
    agreed.arrive_and_wait();
  });
}

/// It has no thread that polls, and calls nothing.
TEST_F(JobWithNewcomers, WhoHasDoneNothingTakesTheMessagesOfARankThatLeaves) {
  test::Meeting met(2), left(2);
  test::on_ranks_that_meet(2, {&met, &left}, [&](uint32_t rank) {
    JobOptions mine = options_of_two(rank);
    mine.timeout = 20s;
    const auto job = Job::connect(mine);
    met.arrive_and_wait();
    if (rank == 0) {
      const std::vector<float> values(2000, 1);  // 20 of them exceed a ring
      std::vector<Work> sends;
      for (uint64_t tag = 0; tag < 20; ++tag)
        sends.push_back(job->collectives()->world().send({values.data(), {values.size()}}, 1, tag));
      EXPECT_NO_THROW(job->leave());
    }
    left.arrive_and_wait();
  });
}

/// Its control plane runs until it has left, and calls the rest of its job.
TEST_F(JobWithNewcomers, WhoIsInterruptedWhileItJoinsLeavesInGoodOrder) {
  JobOptions mine = options(0);
  mine.size = 1;
  mine.size_max = 3;
  const auto job = Job::connect(mine);
  std::promise<void> waits, over;
  auto interrupted = std::async(std::launch::async, [&, theirs = mine]() mutable {
    theirs.rank = 1;
    theirs.interrupt = [&] {
      if (job->waiting().empty()) return;
      waits.set_value();
      EXPECT_TRUE(until([&] { return job->active_ranks().size() == 3; }));
      throw std::logic_error("Ctrl-C");
    };
    EXPECT_THROW(Job::join(theirs), std::logic_error);
  });
  waits.get_future().wait_for(60s);
  job->grow(1);
  auto third = std::async(std::launch::async, [&, theirs = mine]() mutable {
    theirs.rank = 2;
    const auto joined = Job::join(theirs);
    over.get_future().wait_for(60s);
  });
  job->grow(1);  // To which rank 1 has agreed, as a member.
  interrupted.get();
  EXPECT_TRUE(until([&] { return job->active_ranks().size() == 2; }));
  EXPECT_EQ(job->metrics().left, 1u);
  EXPECT_EQ(job->metrics().lost, 0u);
  over.set_value();
  third.get();
}

TEST_F(JobWithNewcomers, CountsAStrangerThatItRefuses) {
  JobOptions mine = options(0);
  mine.own_store = std::make_shared<control::MemoryStore>();
  mine.size = 1;
  mine.size_max = 2;
  const auto job = Job::connect(mine);
  JobOptions strange = mine;
  strange.rank = 1;
  strange.secret = "another";
  strange.timeout = 60s;
  strange.interrupt = [&] {
    if (job->metrics().refused > 0) throw std::logic_error("it was refused");
  };
  EXPECT_THROW(Job::join(strange), std::logic_error);
  EXPECT_GT(job->collectives()->counters().refused, 0u);
}

TEST_F(JobWithNewcomers, RanksOfOneHostNameShareMemory) {
  for (const bool is_one : {true, false}) {
    test::Meeting met(2);
    test::on_ranks_that_meet(2, {&met}, [&](uint32_t rank) {
      JobOptions mine = options_of_two(rank);
      mine.job = is_one ? "of one host" : "of two";
      mine.host = is_one || rank == 0 ? "a" : "b";
      const auto job = Job::connect(mine);
      EXPECT_THAT(job->collectives()->world().choice("all_reduce", 1024),
                  ::testing::HasSubstr(is_one ? "on 1 host" : "on 2 hosts"));
      met.arrive_and_wait();
    });
  }
}

/// Its last messages are awaited for a second, or until Ctrl-C.
TEST_F(JobWithNewcomers, AJobThatEndsCancelsWhatNobodyHasTaken) {
  for (const bool is_interrupted : {false, true}) {
    test::Meeting met(2), ended(2);
    test::on_ranks_that_meet(2, {&met, &ended}, [&](uint32_t rank) {
      std::atomic<bool> is_armed = false;
      JobOptions mine = options_of_two(rank);
      mine.job = is_interrupted ? "interrupted" : "in peace";
      mine.interrupt = [&] {
        if (is_armed) throw std::logic_error("Ctrl-C");
      };
      auto job = Job::connect(mine);
      met.arrive_and_wait();
      if (rank == 0) {
        const std::vector<float> values(1 << 20, 1);
        Work send = job->collectives()->world().send({values.data(), {values.size()}}, 1);
        std::atomic<int> calls = 0;
        send.when_done([&] { ++calls; });
        is_armed = is_interrupted;
        job.reset();
        EXPECT_TRUE(send.done());
        EXPECT_EQ(calls, 1);
        EXPECT_THROW(send.wait(), Cancelled);
      }
      ended.arrive_and_wait();
    });
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
