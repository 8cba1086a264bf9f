/// Networks over proxies and TCP, between threads of this process; their contract is in
/// network_contract_test.cpp.
#include "fabric/proxy/proxy_network.hpp"

#include <gtest/gtest.h>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_ways.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {
namespace {

/// By the number of connections per peer.
class ProxyOverTcp : public ::testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Paths, ProxyOverTcp, ::testing::Values(1, 3),
                         [](const auto& paths) { return fmt::format("paths_{}", paths.param); });

TEST_P(ProxyOverTcp, ReachesOverIpv6) {
  std::vector<std::unique_ptr<World>> worlds;
  try {
    worlds = worlds_between_hosts(2, 2, 1 << 20,
                                  proxy_networks({.tcp = {.address = "::1", .paths = GetParam()}}));
  } catch (const OsError& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  run_as_ranks(std::move(worlds), [](World& world) { signals_follow_puts(world, 5); });
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
  auto worlds = worlds_between_hosts(
      2, 2, 1 << 20, proxy_networks({.tcp = {.address = "127.0.0.1", .paths = GetParam()}}));
  run_as_ranks(std::move(worlds), [](World& world) {
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
