/// The contract of networks over proxies and TCP, between threads of this process.
#include "fabric/proxy/proxy_network.hpp"

#include <gtest/gtest.h>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/worlds.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {
namespace {

/// By the number of connections per peer.
class ProxyOverTcp : public ::testing::TestWithParam<uint32_t> {
 protected:
  static void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program,
                        std::chrono::seconds timeout = std::chrono::seconds(60)) {
    WorldOptions options;
    options.timeout = timeout;
    options.arena_bytes = 1 << 20;
    options.hosts = hosts;
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
    auto worlds = join_all(accelerators, std::make_shared<InProcessFabric>(hosts), options, {},
                           proxy_networks({.tcp = {.address = "127.0.0.1", .paths = GetParam()}}));
    on_every_rank(ranks, [&](uint32_t rank) {
      const std::unique_ptr<World> mine = std::move(worlds[rank]);
      program(*mine);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, ProxyOverTcp, ::testing::Values(1, 3),
                         [](const auto& paths) { return fmt::format("paths_{}", paths.param); });

TEST_P(ProxyOverTcp, SignalsFollowPuts) {
  run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 60); });
  run_hosts(4, 2, [](World& world) { signals_follow_puts(world, 20, {.in_arena = false}); });
}

TEST_P(ProxyOverTcp, AFlushFreesSources) {
  run_hosts(4, 2, [](World& world) { flush_frees_sources(world); });
}

TEST_P(ProxyOverTcp, RingsKeepCredit) {
  run_hosts(2, 2, [](World& world) { rings_keep_credit(world, 1, 20); });
  run_hosts(3, 3, [](World& world) { rings_keep_credit(world, kRingSlots, 60); });
}

TEST_P(ProxyOverTcp, PairsFillTheQueue) {
  run_hosts(2, 2, [](World& world) { pairs_fill_the_queue(world, 500); });
}

TEST_P(ProxyOverTcp, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST_P(ProxyOverTcp, BadRequestsAreRefused) {
  for (uint32_t what = 0; what < kBadRequests; ++what) {
    SCOPED_TRACE(what);
    run_hosts(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
  }
}

TEST_P(ProxyOverTcp, AFaultEndsWithItsExchange) {
  run_hosts(2, 2, a_fault_ends_with_its_exchange);
}

TEST_P(ProxyOverTcp, DeregisteringEndsAccesses) {
  for (uint32_t run = 0; run < 10; ++run) run_hosts(2, 2, deregistering_ends_accesses);
}

TEST_P(ProxyOverTcp, WhatWasPostedArrives) {
  for (uint32_t ending = 0; ending < kEndings; ++ending) {
    run_hosts(2, 2,
              [&](World& world) { what_was_posted_arrives(world, static_cast<Ending>(ending)); });
  }
}

TEST_P(ProxyOverTcp, CarriesPutsOfAnySize) {
  for (const uint32_t bytes : {4u, 4u << 10, 33u << 10, (1u << 20) + 4, 16u << 20})
    run_hosts(2, 2, [&](World& world) { carries(world, bytes); });
}

TEST_P(ProxyOverTcp, NetworksComeAndGo) {
  for (uint32_t cycle = 0; cycle < 500; ++cycle)
    run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 1); });
}

TEST_P(ProxyOverTcp, SurvivorsRebuildAcrossHosts) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    promise(network_of(*smaller)->arena_key(smaller->rank()) !=
                network_of(world)->arena_key(world.rank()),
            "keys of the world before must be refused");
    signals_follow_puts(*smaller, 5);
  });
}

TEST_P(ProxyOverTcp, ReachesOverIpv6) {
  WorldOptions options{.timeout = std::chrono::seconds(60), .arena_bytes = 1 << 20, .hosts = 2};
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < 2; ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  std::vector<std::unique_ptr<World>> worlds;
  try {
    worlds = join_all(accelerators, std::make_shared<InProcessFabric>(2), options, {},
                      proxy_networks({.tcp = {.address = "::1", .paths = GetParam()}}));
  } catch (const OsError& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  on_every_rank(2, [&](uint32_t rank) {
    const std::unique_ptr<World> mine = std::move(worlds[rank]);
    signals_follow_puts(*mine, 5);
  });
}

/// Counts the waits of a rank.
class CountingWaits : public simt::HostAccelerator {
 public:
  CountingWaits() : HostAccelerator([] {}) {}
  bool wait_until(TimePoint until, const std::function<bool()>& condition) override {
    ++waits;
    return HostAccelerator::wait_until(until, condition);
  }
  std::atomic<uint32_t> waits = 0;
};

TEST_P(ProxyOverTcp, ARankThatLeavesWaitsOnceForItsRequests) {
  const WorldOptions options{
      .timeout = std::chrono::seconds(60), .arena_bytes = 1 << 20, .hosts = 2};
  const std::vector<std::shared_ptr<CountingWaits>> counting{std::make_shared<CountingWaits>(),
                                                             std::make_shared<CountingWaits>()};
  auto worlds =
      join_all({counting[0], counting[1]}, std::make_shared<InProcessFabric>(2), options, {},
               proxy_networks({.tcp = {.address = "127.0.0.1", .paths = GetParam()}}));
  on_every_rank(2, [&](uint32_t rank) {
    std::unique_ptr<World> mine = std::move(worlds[rank]);
    signals_follow_puts(*mine, 1);
    CountingWaits& gpu = *counting[rank];
    EXPECT_TRUE(network_of(*mine)->drain_at_end(gpu.now() + mine->timeout()));
    const uint32_t before = gpu.waits;
    mine.reset();
    EXPECT_EQ(gpu.waits, before) << "the network has waited again";
  });
}

/// A rank whose driver does not pin memory for queues.
class NotPinning : public simt::HostAccelerator {
 public:
  NotPinning() : HostAccelerator([] {}) {}
  void* allocate_shared(size_t bytes) override {
    if (bytes == sizeof(QueuePair)) throw OsError("pin memory", ENOMEM, "no room");
    return HostAccelerator::allocate_shared(bytes);
  }
};

TEST_P(ProxyOverTcp, MemoryThatOneRankLacksIsToldOnAll) {
  const WorldOptions options{
      .timeout = std::chrono::seconds(60), .arena_bytes = 1 << 20, .hosts = 3};
  const std::vector<std::shared_ptr<Accelerator>> accelerators{
      std::make_shared<simt::HostAccelerator>([] {}), std::make_shared<NotPinning>(),
      std::make_shared<simt::HostAccelerator>([] {})};
  try {
    // Throws what the first rank has met.
    join_all(accelerators, std::make_shared<InProcessFabric>(3), options, {},
             proxy_networks({.tcp = {.address = "127.0.0.1", .paths = GetParam()}}));
    ADD_FAILURE() << "a world was made without memory";
  } catch (const OsError& error) {
    EXPECT_NE(std::string(error.what()).find("pin memory on rank 1"), std::string::npos)
        << error.what();
  }
}

/// A sleeping thread has no more processor time an hour later; 50 ms stand for the hour.
TEST_P(ProxyOverTcp, AProxyWithNothingToDoSleepsAndCostsNothing) {
  run_hosts(2, 2, [](World& world) {
    signals_follow_puts(world, 3);
    Proxy& proxy = dynamic_cast<ProxyNetwork&>(*network_of(world)).proxy();
    Accelerator& gpu = accelerator_of(world);
    const auto stays_asleep = [&] {
      const auto before = std::pair(proxy.sleeps(), proxy.processor_time());
      const TimePoint until = gpu.now() + std::chrono::milliseconds(50);
      gpu.wait_until(until, [] { return false; });
      return before == std::pair(proxy.sleeps(), proxy.processor_time()) && proxy.asleep();
    };
    promise(gpu.wait_until(gpu.now() + world.timeout(), stays_asleep),
            "an idle proxy goes on using its processor");
    world.barrier("asleep");
    // A kernel's post and an arrival wake it.
    signals_follow_puts(world, 3);
  });
}

/// The epoch of a world and the number that a rank drew for it are part of the handshake.
TEST(TcpConnector, AConnectionFromAnEarlierWorldIsRefused) {
  const TcpOptions options{.address = "127.0.0.1", .paths = 1};
  const std::string secret = "the secret of a job";
  const auto connects = [&](uint32_t dialler_epoch, const std::string& dialler_secret,
                            uint64_t sought_offset) {
    TcpConnector acceptor(options, {.rank = 0, .epoch = 5, .secret = secret});
    TcpConnector dialler(options, {.rank = 1, .epoch = dialler_epoch, .secret = dialler_secret});
    TcpEndpoint there = acceptor.endpoint();
    there.incarnation += sought_offset;
    acceptor.begin({{1, dialler.endpoint()}}, 1);
    dialler.begin({{0, there}}, 1);
    const TimePoint until = Clock::now() + std::chrono::seconds(20);
    bool both = false;
    for (uint32_t refusals = 0; !both && refusals < 3 && Clock::now() < until;) {
      const bool accepted = acceptor.step(Clock::now()), dialled = dialler.step(Clock::now());
      both = accepted && dialled;
      const auto why = dialler.missing();
      if (why && why->second != "it has not answered") ++refusals;
    }
    return both;
  };
  EXPECT_TRUE(connects(5, secret, 0));
  EXPECT_FALSE(connects(4, secret, 0)) << "an earlier epoch";
  EXPECT_FALSE(connects(5, "the secret of another", 0));
  EXPECT_FALSE(connects(5, secret, 1)) << "the number of an earlier world";
}

TEST(TcpConnector, AnUnknownInterfaceIsNamedWithThoseThatExist) {
  try {
    (void)address_of_interface("nosuchcard0");
    ADD_FAILURE() << "there is no such interface";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "interface");
    EXPECT_NE(error.expected.find("lo"), std::string::npos);
  }
  EXPECT_EQ(address_of_interface("lo"), "127.0.0.1");
}

}  // namespace
}  // namespace tokenyard::testing
