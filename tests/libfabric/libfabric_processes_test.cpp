/// Networks over the plug-in of libfabric between processes, on one host and on several (network
/// namespaces).
#include "fabric/proxy/proxy_processes.hpp"

namespace tokenyard::testing {
namespace {

#ifdef TOKENYARD_LIBFABRIC
constexpr uint32_t kRanks = 3;

class LibfabricProcesses : public ProxyProcesses,
                           public ::testing::WithParamInterface<const char*> {
 protected:
  LibfabricProcesses() {
    network_.plugin = {.library = TOKENYARD_LIBFABRIC, .provider = GetParam(), .interface = ""};
    // Memory of one host is at no address.
    if (network_.plugin.provider == "shm") network_.plugin.interface = "shm";
  }
};

INSTANTIATE_TEST_SUITE_P(Over, LibfabricProcesses, ::testing::Values("tcp;ofi_rxm", "shm"),
                         [](const auto& provider) {
                           return std::string(provider.param).substr(0, 3);
                         });

TEST_P(LibfabricProcesses, KeepTheContract) {
  RankProcesses ranks(kRanks, [&](uint32_t rank) {
    const auto world = join(rank, kRanks, "127.0.0.1");
    signals_follow_puts(*world, 20);
    flush_frees_sources(*world);
    rings_keep_credit(*world, kRingSlots, 40);
    carries(*world, 8 << 20);
    deregistering_ends_accesses(*world);
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

TEST_P(LibfabricProcesses, ARankThatIsKilledWithRequestsUnderWayIsNamed) {
  RankProcesses ranks(kRanks, [&](uint32_t rank) {
    const auto world = join(rank, kRanks, "127.0.0.1");
    exchange_until_lost(*world, 2);
    promise(await_rounds({0, 1}, kDone), "the other survivor has not noticed");
  });
  ASSERT_TRUE(await_rounds({0, 1, 2}, 3));
  ranks.signal(2, SIGKILL);
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

class LibfabricHosts : public ProxyHosts {
 protected:
  LibfabricHosts() {
    network_.plugin = {
        .library = TOKENYARD_LIBFABRIC, .provider = "tcp;ofi_rxm", .interface = "eth"};
  }
};

TEST_F(LibfabricHosts, KeepTheContract) {
  expect_the_contract_to_be_kept();
}

TEST_F(LibfabricHosts, AHostThatIsCutOffIsNamed) {
  expect_rank_2_to_be_named([&] { hosts_->cut(2); });
}
#endif

}  // namespace
}  // namespace tokenyard::testing
