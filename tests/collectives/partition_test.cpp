/// Networks that are cut between real processes, each on a host with its own network. Only silence
/// reveals a cut. The smaller part never goes on alone.
#include <gtest/gtest.h>

#include <optional>

#include "collectives/elastic_job.hpp"
#include "collectives/network_namespaces.hpp"

namespace tokenyard::collectives {
namespace {

using namespace std::chrono_literals;

class Partition : public ::testing::Test {
 protected:
  static constexpr uint32_t kRanks = 3;

  void SetUp() override {
    try {
      network_.emplace(kRanks);
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << "no network namespaces here: " << error.what();
    }
    job_.emplace(kRanks, [](CollectivesOptions& options) {
      options.address = NetworkNamespaces::address(options.rank);
      options.silence = 1s;
    });
    job_->on_start([this](uint32_t rank) { network_->enter(rank); });
    job_->start();
    job_->await_progress({0, 1, 2});
  }

  /// Ranks 0 and 1 go on; rank 2 does nothing on its own.
  void expect_rank_2_to_be_evicted(int64_t since) {
    const uint64_t done = job_->done(2);
    await("the majority to go on", [&] {
      for (const uint32_t rank : {0u, 1u}) {
        const Page& page = job_->page(rank);
        if (page.members != 2 || page.good_at <= page.aborted_at) return false;
      }
      return true;
    });
    fmt::print("a cut (silence 1 s): all went on after {:.1f} ms\n",
               static_cast<double>(now_ns() - since) / 1e6);
    job_->await_progress({0, 1});
    // Operations in flight may have been completed.
    EXPECT_LE(job_->done(2), done + 2);
  }
  void expect_rank_2_to_come_back() {
    await("it to be fenced", [&] { return job_->page(2).fate == Fate::fenced; });
    job_->diary().replace = 2;
    job_->await_members({0, 1, 2}, 3);
    job_->finish({0, 1, 2});
  }

  std::optional<NetworkNamespaces> network_;
  std::optional<ElasticJob> job_;
};

TEST_F(Partition, CutBothWaysLeavesTheMajority) {
  const int64_t since = now_ns();
  network_->cut(2);
  expect_rank_2_to_be_evicted(since);
  EXPECT_EQ(job_->page(2).fate, Fate::at_work);
  network_->recover(2);
  expect_rank_2_to_come_back();
}

TEST_F(Partition, CutOneWayLeavesThoseWhoHearOneAnother) {
  const int64_t since = now_ns();
  network_->cut_one_way(2, 0);
  expect_rank_2_to_be_evicted(since);
  network_->recover_one_way(2, 0);
  expect_rank_2_to_come_back();
}

}  // namespace
}  // namespace tokenyard::collectives
