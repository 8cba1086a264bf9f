/// Networks over proxies and TCP between processes, on one host and on several (network
/// namespaces): the contract, and what survivors see when a peer dies or is cut off.
#include "fabric/proxy/proxy_processes.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

namespace tokenyard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ProxyProcesses, KeepTheContract) {
  RankProcesses ranks(3, [&](uint32_t rank) {
    const auto world = join(rank, 3, "127.0.0.1");
    signals_follow_puts(*world, 20);
    flush_frees_sources(*world);
    rings_keep_credit(*world, kRingSlots, 40);
    carries(*world, 8 << 20);
    deregistering_ends_accesses(*world);
  });
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

TEST_F(ProxyProcesses, ARankThatIsKilledWithRequestsUnderWayIsNamed) {
  RankProcesses ranks(3, [&](uint32_t rank) {
    const auto world = join(rank, 3, "127.0.0.1");
    exchange_until_lost(*world, 2);
    promise(await_rounds({0, 1}, kDone), "the other survivor has not noticed");
  });
  ASSERT_TRUE(await_rounds({0, 1, 2}, 3));
  ranks.signal(2, SIGKILL);
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

TEST_F(ProxyHosts, KeepTheContract) {
  expect_the_contract_to_be_kept();
}

TEST_F(ProxyHosts, AHostThatIsCutOffIsNamed) {
  expect_rank_2_to_be_named([&] { hosts_->cut(2); });
}

/// The cards stay up, and nothing is refused: packets are lost without a word.
TEST_F(ProxyHosts, AHostBehindAFirewallIsNamed) {
  if (std::system("command -v nft >/dev/null") != 0) GTEST_SKIP() << "no nftables here";
  expect_rank_2_to_be_named([&] { hosts_->partition(2); });
}

/// The job goes on, so nobody tells that the host is gone, and its connections do not break.
TEST_F(ProxyHosts, AHostWhoseNetworkCardIsSilentIsNamed) {
  card_ = 1;
  timeout_ = 8s;  // So long ranks wait for the job to tell that the host is gone.
  expect_rank_2_to_be_named([&] { hosts_->cut(2, 1); });
  EXPECT_TRUE(page().unreachable[0] && page().unreachable[1]);
}

TEST_F(ProxyHosts, APortThatDoesNotAnswerIsNamedByAll) {
  if (std::system("command -v nft >/dev/null") != 0) GTEST_SKIP() << "no nftables here";
  hosts_->close_ports(2, 1);
  EXPECT_THAT(refusal_of_all(),
              AllOf(HasSubstr("rank 0 has 0 of 2 connections to rank 2"), HasSubstr("port")));
}

TEST_F(ProxyHosts, AHostThatCannotReachOneOtherIsNamedByAll) {
  hosts_->cut_one_way(1, 0, 1);
  EXPECT_THAT(refusal_of_all(), HasSubstr("rank 0 has 0 of 2 connections to rank 1"));
}

TEST_F(ProxyHosts, AHostThatIsCutOffInOneDirectionIsNamed) {
  expect_rank_2_to_be_named([&] { hosts_->cut_one_way(2, 0); });
}

}  // namespace
}  // namespace tokenyard::testing
