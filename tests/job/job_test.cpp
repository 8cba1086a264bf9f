/// Worlds and collectives stand on one job, whose members come and go.
#include "tokenyard/job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/environment.hpp"
#include "fabric/finished_calls.hpp"
#include "fabric/ranks.hpp"
#include "fabric/world_access.hpp"
#include "job/job_of_three.hpp"
#include "tokenyard/collectives.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobOfThree : public test::JobOfThree {
 protected:
  static std::unique_ptr<World> world_of(Job& job) {
    return job.world("host", {.timeout = 30s, .arena_bytes = 1 << 16});
  }
  /// Both kinds of calls, with everybody.
  static void use(Job& job) {
    const auto world = world_of(job);
    const auto mine = std::byte(job.rank());
    const auto all = world->all_gather({&mine, 1}, "ranks");
    ASSERT_EQ(all.size(), 3u);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank].at(0), std::byte(rank));
    int64_t sum = int64_t{1} << job.rank();
    job.collectives()->world().all_reduce(TensorView{&sum, {1}}, ReduceOp::sum).wait();
    EXPECT_EQ(sum, 7);
    world->barrier("used");
  }
};

TEST(Meeting, EndsForAllOnceARankHasFailed) {
  test::Meeting met(2);
  std::string other;
  EXPECT_THROW(test::on_ranks_that_meet(2, {&met},
                                        [&](uint32_t rank) {
                                          if (rank == 0) throw std::logic_error("of this test");
                                          try {
                                            met.arrive_and_wait();
                                          } catch (const std::runtime_error& error) {
                                            other = error.what();
                                          }
                                        }),
               std::logic_error);
  EXPECT_EQ(other, "another rank of the test has failed");
}

TEST_F(JobOfThree, CarriesWorldsAndCollectives) {
  test::Meeting done(3);
  test::on_ranks_that_meet(3, {&done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    use(*job);
    use(*job);  // Another world in the same epoch.
    EXPECT_EQ(job->epoch(), 1u);
    EXPECT_EQ(world_of(*job)->job(), job);
    EXPECT_THROW(job->evict(rank), InvalidArgument) << "it would leave";
    const JobMetrics metrics = job->metrics();
    EXPECT_THAT(metrics.active, ElementsAre(0, 1, 2));
    EXPECT_EQ(metrics.joined, 3u);
    done.arrive_and_wait();
  });
}

TEST_F(JobOfThree, HasASecretOrSaysHowToGiveOne) {
  ASSERT_FALSE(SecretEnvironment::read().secret || SecretEnvironment::read().file);
  JobOptions without = options(0);
  without.secret.clear();
  without.timeout = 1s;
  for (const auto enter : {&Job::connect, &Job::join}) {
    try {
      enter(without);
      ADD_FAILURE() << "a job without a secret";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "secret");
      EXPECT_THAT(error.expected, HasSubstr("TOKENYARD_SECRET_FILE"));
    }
  }
  setenv("TOKENYARD_SECRET", "0123456789abcdef", 1);
  test::Meeting done(3);
  test::on_ranks_that_meet(3, {&done}, [&](uint32_t rank) {
    JobOptions mine = options(rank);
    mine.secret = rank == 2 ? "0123456789abcdef" : "";
    const auto job = Job::connect(mine);
    use(*job);
    done.arrive_and_wait();
  });
  unsetenv("TOKENYARD_SECRET");
}

TEST_F(JobOfThree, NewcomerIsInTheNextWorld) {
  test::Meeting used(3), left(3), done(3);
  std::future<void> newcomer;
  test::on_ranks_that_meet(3, {&used, &left, &done}, [&](uint32_t rank) {
    auto job = Job::connect(options(rank));
    const auto before = world_of(*job);
    use(*job);
    used.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      left.arrive_and_wait();
      done.arrive_and_wait();
      return;
    }
    left.arrive_and_wait();
    if (rank == 0) {
      newcomer = std::async(std::launch::async, [&] {
        const auto joined = Job::join(options(2));
        use(*joined);
      });
    }
    job->replace(2);
    use(*job);
    // The world of before knows the one who left, and takes no word of the newcomer for its own.
    EXPECT_THROW(before->barrier("of before"), PeerLost);
    done.arrive_and_wait();
  });
  newcomer.get();
}

/// A request of before means the process that held the slot then.
TEST_F(JobOfThree, EvictsNobodyForTheRankBeforeIt) {
  test::Meeting met(3), left(3), admitted(3), done(3);
  std::future<void> newcomer;
  test::on_ranks_that_meet(3, {&met, &left, &admitted, &done}, [&](uint32_t rank) {
    JobOptions mine = options(rank);
    mine.on_failure = OnFailure::exclude;
    auto job = Job::connect(mine);
    const auto before = world_of(*job);
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      left.arrive_and_wait();
      admitted.arrive_and_wait();
      done.arrive_and_wait();
      return;
    }
    left.arrive_and_wait();
    if (rank == 0) {
      newcomer = std::async(std::launch::async, [&, theirs = options(2)] {
        const auto joined = Job::join(theirs);
        admitted.wait();
        use(*joined);
      });
    }
    job->replace(2);
    continue_job_after(*before, 2, true);
    const auto smaller = before->rebuild({2});
    EXPECT_EQ(smaller->size(), 2u);
    smaller->barrier("of the two that were there before");
    EXPECT_THAT(job->active_ranks(), ElementsAre(0, 1, 2));
    admitted.arrive_and_wait();
    use(*job);
    done.arrive_and_wait();
  });
  newcomer.get();
}

/// No connection ends: its job goes on.
TEST_F(JobOfThree, WaitsForNobodyWhoHasClosedItsWorld) {
  on_every_rank(3, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    auto world = world_of(*job);
    world->barrier("with everybody");
    if (rank != 2) {
      try {
        world->barrier("without rank 2");
        ADD_FAILURE() << "rank 2 does not come";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.facts.rank, 2u);
      }
      EXPECT_TRUE(world->lost().empty()) << "rank 2 is still in the job";
    }
    world.reset();
    use(*job);
  });
}

TEST_F(JobOfThree, MakesAWorldWithoutWhoIsLostMeanwhile) {
  test::Meeting met(3);
  test::on_ranks_that_meet(3, {&met}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto before = world_of(*job);
    met.arrive_and_wait();
    if (rank == 1) return;  // Leaves instead.
    const auto world = world_of(*job);
    EXPECT_EQ(world->size(), 3u);
    EXPECT_THAT(lost_between(*before, *world, {}), ElementsAre(1));
    EXPECT_EQ(world->topology().peers[1].reach, Reach::none);
    world->barrier("without rank 1");
  });
}

TEST_F(JobOfThree, NumbersTheRanksOfACompactWorldAnew) {
  test::Meeting met(3);
  test::on_ranks_that_meet(3, {&met}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    met.arrive_and_wait();
    if (rank == 1) return;  // Leaves.
    const auto world =
        job->world("host", {.timeout = 30s, .arena_bytes = 1 << 16, .compact = true});
    EXPECT_EQ(world->size(), 2u);
    EXPECT_EQ(world->rank(), rank / 2);
    EXPECT_THAT(world->left_out(), ElementsAre(1));
    const auto mine = std::byte(rank);
    const auto all = world->all_gather({&mine, 1}, "ranks of the job");
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[1].at(0), std::byte(2));
  });
}

/// Also where nobody has asked for news before.
TEST_F(JobOfThree, TellsOfTheFirstChangeAfterTheCall) {
  test::Meeting met(3), told(3);
  test::on_ranks_that_meet(3, {&met, &told}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    std::promise<void> changed;
    std::atomic<bool> is_told = false;
    const auto listening = job->on_change([&] {
      if (!is_told.exchange(true)) changed.set_value();
    });
    EXPECT_FALSE(is_told) << "nothing has changed yet";
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
    } else {
      EXPECT_EQ(changed.get_future().wait_for(30s), std::future_status::ready);
    }
    told.arrive_and_wait();
  });
}

}  // namespace
}  // namespace tokenyard
