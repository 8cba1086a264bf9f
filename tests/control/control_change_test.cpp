/// Processes leave a job, and others join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <thread>

#include "control/control_planes.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control::testing {
namespace {

TEST_F(ControlPlane, OthersGoOnWithoutOneWhoLeft) {
  auto ranks = found(3);
  ranks[0].reset();
  for (const Slot slot : {1u, 2u}) {
    ASSERT_TRUE(ranks[slot]->recorder.wait_for_members(2));
    EXPECT_THAT(ranks[slot]->recorder.last().left, ::testing::ElementsAre(0u));
    const ControlCounters counters = ranks[slot]->control->counters();
    EXPECT_EQ(counters.epochs, 2u);
    EXPECT_EQ(counters.joined, 3u);
    EXPECT_EQ(counters.left, 1u);
    EXPECT_EQ(counters.lost, 0u);
    EXPECT_EQ(counters.links_made, 2u);
    EXPECT_EQ(counters.links_lost, 0u);
  }
}

// On an overloaded machine a goodbye takes long. A rank that hung up before the others had received
// it was taken for dead, and once they had reported their progress, its last operation was undone.
TEST_F(ControlPlane, WhoTakesLongToSayGoodbyeIsNotTakenForDead) {
  auto ranks = found(3);
  ranks[0]->recorder.commit(1);
  std::promise<void> done;
  ranks[0]->recorder.freeze_after(done.get_future().share());
  std::thread slow([&] {
    std::this_thread::sleep_for(1500ms);
    done.set_value();
  });
  ranks[0].reset();
  slow.join();
  for (const Slot slot : {1u, 2u}) {
    ASSERT_TRUE(ranks[slot]->recorder.wait_for_members(2));
    const Verdict verdict = ranks[slot]->recorder.last();
    EXPECT_THAT(verdict.left, ::testing::ElementsAre(0u));
    EXPECT_EQ(verdict.groups.at(0).committed, 1u);
  }
}

// It dies before the others have agreed to go on without it, and they need its promise: its broken
// connection tells them, goodbye or not.
TEST_F(ControlPlane, WhoDiesWhileItLeavesIsMissedAtOnce) {
  std::promise<void> done;
  std::unique_ptr<Rank> stays;
  steady_clock::time_point killed;
  {
    // Killed at the end of this block.
    RankProcesses one(1, [&](uint32_t) {
      const auto leaves = one_of_two(1, 6s);
      leaves->found();
      leaves->control->leave();
      ::pause();
    });
    stays = one_of_two(0, 6s);
    stays->recorder.freeze_after(done.get_future().share());
    stays->found();
    ASSERT_TRUE(stays->recorder.wait_to_freeze());  // it has received the goodbye
    killed = steady_clock::now();
  }
  done.set_value();
  EXPECT_TRUE(stays->recorder.wait_for_missing_quorum());
  EXPECT_LT(steady_clock::now() - killed, 4s);
}

// No quorum can agree to let it go, so it goes after the time of one silence.
TEST_F(ControlPlane, WhoLeavesWithoutAQuorumDoesNotWaitForLong) {
  const auto begin = [&](Slot slot) {
    ControlOptions own = options(slot, 4);
    own.membership.witness = false;
    auto rank = std::make_unique<Rank>(own);
    rank->found();
    return rank;
  };
  std::unique_ptr<Rank> leaves, stays;
  {
    // Killed at the end of this block.
    RankProcesses two(2, [&](uint32_t index) {
      const auto rank = begin(index + 2);
      ::pause();
    });
    on_every_rank(2, [&](uint32_t slot) { (slot == 0 ? leaves : stays) = begin(slot); });
    // Both at once: with one still there, three could agree to evict the other.
    for (const uint32_t index : {0u, 1u}) two.signal(index, SIGSTOP);
  }
  ASSERT_TRUE(leaves->recorder.wait_for_missing_quorum());
  const auto start = steady_clock::now();
  leaves.reset();
  EXPECT_LT(steady_clock::now() - start, 15s);  // the job's timeout is 20 s
}

// Half of the ranks are killed before the others wait for their links: nobody can agree on that.
// A silence is longer than the test, so that only the end of the links tells.
TEST_F(ControlPlane, LinksOfTheDeadAreNotWaitedFor) {
  const auto one_of_four = [&](Slot slot) {
    ControlOptions own = options(slot, 4);
    own.membership.witness = false;
    own.membership.silence = own.timeout = 100s;
    own.farewell = 1s;
    return std::make_unique<Rank>(own);
  };
  std::vector<std::unique_ptr<Rank>> stay(2);
  {
    // Killed at the end of this block.
    RankProcesses dead(2, [&](uint32_t child) {
      const auto dies = one_of_four(child + 2);
      dies->found();
      ::pause();
    });
    on_every_rank(2, [&](uint32_t slot) {
      stay[slot] = one_of_four(slot);
      stay[slot]->found();
    });
  }
  auto waits = std::async(std::launch::async, [&] {
    for (const auto& rank : stay) rank->control->await_links();
  });
  ASSERT_EQ(waits.wait_for(30s), std::future_status::ready);
  EXPECT_NO_THROW(waits.get());
  for (const auto& rank : stay) EXPECT_EQ(rank->control->view().members.size(), 4u);
}

TEST_F(ControlPlane, NewcomerTakesThePlaceOfOneWhoLeft) {
  auto ranks = found(3);
  ranks[0].reset();
  ASSERT_TRUE(ranks[1]->recorder.wait_for_members(2));
  Rank newcomer(options(0, 3));
  std::thread joining([&] { newcomer.join(); });
  ranks[2]->control->admit({0}, ranks[2]->control->view().epoch);
  joining.join();
  for (Recorder* recorder : {&newcomer.recorder, &ranks[1]->recorder, &ranks[2]->recorder}) {
    ASSERT_TRUE(recorder->wait_for_view(
        [&](const View& view) { return view.contains(newcomer.control->self()); }));
    EXPECT_EQ(recorder->contacts().at(0), contact_of(0, 2));
    EXPECT_EQ(recorder->contacts().at(1), contact_of(1));
  }
}

TEST_F(ControlPlane, JobGrows) {
  auto ranks = found(2);
  std::vector<std::unique_ptr<Rank>> more;
  for (const Slot slot : {2u, 3u}) {
    ControlOptions newcomer = options(slot, 2);
    newcomer.slots_max = 4;
    more.push_back(std::make_unique<Rank>(newcomer));
  }
  ranks[0]->control->admit({2, 3}, ranks[0]->control->view().epoch);
  on_every_rank(2, [&](uint32_t rank) { more[rank]->join(); });
  for (auto& rank : {&ranks[0], &ranks[1], &more[0], &more[1]}) {
    EXPECT_TRUE((*rank)->recorder.wait_for_members(4))
        << "rank " << (*rank)->slot << " is in epoch " << (*rank)->control->view().epoch;
  }
}

TEST_F(ControlPlane, NewcomerThatNobodyAdmitsIsTold) {
  const auto ranks = found(2);
  ControlOptions unwanted = options(1, 2);
  unwanted.timeout = 300ms;
  try {
    Rank(unwanted).join();
    FAIL() << "it was let in";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.phase, "join: wait to be admitted");
  }
}

TEST_F(ControlPlane, ReplacementFencesWhomItReplaces) {
  const auto ranks = found(3);
  Rank newcomer(options(1, 3));
  ranks[0]->control->admit({1}, ranks[0]->control->view().epoch);
  newcomer.join();
  ASSERT_TRUE(ranks[1]->recorder.wait_to_be_fenced());
  EXPECT_EQ(ranks[1]->recorder.fenced_in(), 2u);
  EXPECT_TRUE(ranks[2]->recorder.wait_for_view(
      [&](const View& view) { return view.contains(newcomer.control->self()); }));
}

}  // namespace
}  // namespace tokenyard::control::testing
