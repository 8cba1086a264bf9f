/// Networks over proxies and TCP between processes, on one host and on several (network
/// namespaces): the contract, and what survivors see when a peer dies or is cut off.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/mapping.hpp"
#include "collectives/network_namespaces.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/proxy/apart_fabric.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "fabric/worlds.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/job.hpp"
#include "world/parts.hpp"

namespace tokenyard::testing {
namespace {

using collectives::NetworkNamespaces;
using namespace std::chrono_literals;

/// A page that parent and children share.
struct Page {
  std::atomic<uint64_t> rounds[kNetworkRanks];
};

class ProxyProcesses : public ::testing::Test {
 protected:
  ProxyProcesses() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("tokenyard-proxy-{}", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~ProxyProcesses() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<World> join(uint32_t rank, uint32_t ranks, const std::string& address,
                              std::chrono::nanoseconds timeout = 60s) const {
    JobOptions job;
    job.store = "file:" + folder_.string();
    job.secret = "a secret for tests only";
    job.rank = rank;
    job.size = ranks;
    job.address = address;
    job.host = fmt::format("host {}", rank);
    job.timeout = 60s;
    job.silence = 5s;
    return join_job(Job::connect(job),
                    {.accelerator = std::make_shared<simt::HostAccelerator>([] {}),
                     .fabric = std::make_shared<ApartFabric>(),
                     .network = proxy_networks({.tcp = {.address = address, .paths = 2}})},
                    {.timeout = timeout, .arena_bytes = 1 << 20});
  }
  /// Exchanges messages until that fails, which it must because of rank `lost`.
  void exchange_until_lost(World& world, uint32_t lost) {
    NetworkFixture fixture(world, {});
    NetworkParams params = fixture.params();
    try {
      for (params.epoch = 1;; ++params.epoch) {
        fixture.run(network_exchange_kernel, {}, params);
        page().rounds[world.rank()] = params.epoch;
      }
    } catch (const PeerLost& error) {
      promise(error.facts.rank == lost, error.what());
    } catch (const PeerTimeout& error) {
      promise(error.facts.rank == lost, error.what());
    } catch (const NetworkFault& error) {
      promise(error.facts.peer == lost && error.facts.check == "connection", error.what());
    }
    // No peer that ends early is to be blamed by others.
    page().rounds[world.rank()] = kDone;
  }
  static constexpr uint64_t kDone = ~uint64_t{0};

  Page& page() { return *reinterpret_cast<Page*>(shared_.base()); }
  bool await_rounds(const std::vector<uint32_t>& ranks, uint64_t rounds) {
    const auto until = std::chrono::steady_clock::now() + 100s;
    for (const uint32_t rank : ranks) {
      while (page().rounds[rank] < rounds) {
        if (std::chrono::steady_clock::now() >= until) return false;
        std::this_thread::sleep_for(2ms);
      }
    }
    return true;
  }

  std::filesystem::path folder_;

 private:
  Mapping shared_ = Mapping::with_children(sizeof(Page));
};

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

/// Hosts with a network of their own each.
class ProxyHosts : public ProxyProcesses {
 protected:
  static constexpr uint32_t kHosts = 3;

  void SetUp() override {
    try {
      network_.emplace(kHosts);
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << "no network namespaces here: " << error.what();
    }
  }
  std::unique_ptr<World> join_on_host(uint32_t rank) {
    network_->enter(rank);
    return join(rank, kHosts, NetworkNamespaces::address(rank));
  }
  /// Ranks 0 and 1 name rank 2. Rank 2 fails, too, and may name anybody.
  void expect_rank_2_to_be_named(const std::function<void()>& cut) {
    RankProcesses ranks(kHosts, [&](uint32_t rank) {
      const auto world = join_on_host(rank);
      if (rank == 2) {
        try {
          exchange_until_lost(*world, kHosts);
        } catch (const std::exception&) {
          // It has broken the promise to name nobody.
        }
        return;
      }
      exchange_until_lost(*world, 2);
      promise(await_rounds({0, 1}, kDone), "the other survivor has not noticed");
    });
    ASSERT_TRUE(await_rounds({0, 1, 2}, 3));
    cut();
    for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
    ranks.signal(2, SIGKILL);
  }

  std::optional<NetworkNamespaces> network_;
};

TEST_F(ProxyHosts, KeepTheContract) {
  RankProcesses ranks(kHosts, [&](uint32_t rank) {
    const auto world = join_on_host(rank);
    signals_follow_puts(*world, 20);
    rings_keep_credit(*world, kRingSlots, 40);
    carries(*world, 8 << 20);
  });
  for (uint32_t rank = 0; rank < kHosts; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

TEST_F(ProxyHosts, AHostThatIsCutOffIsNamed) {
  expect_rank_2_to_be_named([&] { network_->cut(2); });
}

/// The cards stay up, and nothing is refused: packets are lost without a word.
TEST_F(ProxyHosts, AHostBehindAFirewallIsNamed) {
  if (std::system("command -v nft >/dev/null") != 0) GTEST_SKIP() << "no nftables here";
  expect_rank_2_to_be_named([&] { network_->partition(2); });
}

TEST_F(ProxyHosts, AHostThatIsCutOffInOneDirectionIsNamed) {
  expect_rank_2_to_be_named([&] { network_->cut_one_way(2, 0); });
}

}  // namespace
}  // namespace tokenyard::testing
