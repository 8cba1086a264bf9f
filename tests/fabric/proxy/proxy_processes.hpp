/// Ranks that are processes, on one host or on several (network namespaces), and a network over
/// proxies between them.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

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

using collectives::NetworkNamespaces;
using namespace std::chrono_literals;

/// A page that parent and children share.
struct ProxyPage {
  static constexpr size_t kSentence = 512;
  char refusals[kNetworkRanks][kSentence];  ///< why ranks have no world
  std::atomic<uint64_t> rounds[kNetworkRanks];
  std::atomic<bool> unreachable[kNetworkRanks];  ///< the rank's network could not reach a peer
};

class ProxyProcesses : public ::testing::Test {
 protected:
  ProxyProcesses() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("tokenyard-proxy-{}", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~ProxyProcesses() override { std::filesystem::remove_all(folder_); }

  /// `card`: the address of its network card, where that is another one.
  std::unique_ptr<World> join(uint32_t rank, uint32_t ranks, const std::string& address,
                              const std::string& card = "") const {
    ProxyNetworkOptions network = network_;
    network.tcp.address = card.empty() ? address : card;
    if (!network.plugin.library.empty()) {
      network.tcp = {};
      if (network.plugin.interface.empty()) network.plugin.interface = address;
    }
    if (!card.empty()) network.proxy.grace = 2s;
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
                     .network = proxy_networks(network)},
                    {.timeout = timeout_, .arena_bytes = 1 << 20});
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
      page().unreachable[world.rank()] = error.facts.cause.starts_with("it has taken nothing for");
    }
    // No peer that ends early is to be blamed by others.
    page().rounds[world.rank()] = kDone;
  }
  static constexpr uint64_t kDone = ~uint64_t{0};

  ProxyPage& page() { return *reinterpret_cast<ProxyPage*>(shared_.base()); }
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
  ProxyNetworkOptions network_{.tcp = {.paths = 2}};
  std::chrono::nanoseconds timeout_ = 60s;  ///< of the world

 private:
  Mapping shared_ = Mapping::with_children(sizeof(ProxyPage));
};

/// Hosts with a network of their own each.
class ProxyHosts : public ProxyProcesses {
 protected:
  static constexpr uint32_t kHosts = 3;

  void SetUp() override {
    try {
      hosts_.emplace(kHosts, 2);
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << "no network namespaces here: " << error.what();
    }
  }
  std::unique_ptr<World> join_on_host(uint32_t rank) {
    hosts_->enter(rank);
    return join(rank, kHosts, NetworkNamespaces::address(rank),
                card_ == 0 ? "" : NetworkNamespaces::address(rank, card_));
  }
  void expect_the_contract_to_be_kept() {
    RankProcesses ranks(kHosts, [&](uint32_t rank) {
      const auto world = join_on_host(rank);
      signals_follow_puts(*world, 20);
      rings_keep_credit(*world, kRingSlots, 40);
      carries(*world, 8 << 20);
    });
    for (uint32_t rank = 0; rank < kHosts; ++rank)
      EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }
  /// Returns the sentence of all ranks, which the network of none connects.
  std::string refusal_of_all() {
    card_ = 1;
    timeout_ = 12s;
    RankProcesses ranks(kHosts, [&](uint32_t rank) {
      try {
        (void)join_on_host(rank);
        promise(false, "they were connected");
      } catch (const Unsupported& error) {
        fmt::format_to_n(page().refusals[rank], ProxyPage::kSentence - 1, "{}", error.what());
      }
      page().rounds[rank] = kDone;
      // A rank that ends early is lost to others.
      promise(await_rounds({0, 1, 2}, kDone), "another rank has not been refused");
    });
    for (uint32_t rank = 0; rank < kHosts; ++rank)
      EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
    for (uint32_t rank = 1; rank < kHosts; ++rank)
      EXPECT_STREQ(page().refusals[rank], page().refusals[0]);
    return page().refusals[0];
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
        // Its end would tell the others what its silence is to tell them.
        (void)await_rounds({0, 1}, kDone);
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

  std::optional<NetworkNamespaces> hosts_;
  uint32_t card_ = 0;  ///< of the proxies; the job uses the first
};

}  // namespace tokenyard::testing
