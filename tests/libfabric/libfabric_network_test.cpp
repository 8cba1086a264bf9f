/// The contract of networks over the plug-in of libfabric, between threads of this process, with
/// each way to keep order; and what is refused.
#include "fabric/network_kernel_definitions.hpp"

#include <gtest/gtest.h>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "fabric/worlds.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {
namespace {

#ifndef TOKENYARD_LIBFABRIC
TEST(Libfabric, KeepsTheContract) {
  GTEST_SKIP() << "this machine has no libfabric (Debian: libfabric-dev)";
}
#else
struct Way {
  const char* name;
  const char* library;
  const char* provider;
  const char* order;  ///< as the way of a peer names it
};
constexpr const char *kPlain = TOKENYARD_LIBFABRIC, *kShuffled = TOKENYARD_LIBFABRIC_SHUFFLED;
const Way kWays[] = {
    {"tcp", kPlain, "tcp;ofi_rxm", "in the network's order"},
    {"shm", kPlain, "shm", "puts are counted"},
    {"tcp_offsets", kShuffled, "offsets:0:tcp;ofi_rxm", "in the network's order"},
    {"shm_offsets", kShuffled, "offsets:0:shm", "in the network's order"},
    {"tcp_counted_1", kShuffled, "counted:1:tcp;ofi_rxm", "puts are counted"},
    {"tcp_counted_2", kShuffled, "counted:2:tcp;ofi_rxm", "puts are counted"},
    {"tcp_delivered", kShuffled, "delivered:3:tcp;ofi_rxm", "signals wait for puts"},
    {"shm_counted", kShuffled, "counted:4:shm", "puts are counted"},
};

ProxyNetworkOptions options_of(const Way& way) {
  return {.plugin = {.library = way.library, .provider = way.provider, .interface = "127.0.0.1"}};
}

class Libfabric : public ::testing::TestWithParam<Way> {
 protected:
  using Choose = std::function<ProxyNetworkOptions(uint32_t rank)>;

  static void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program) {
    WorldOptions options;
    options.timeout = std::chrono::seconds(60);
    options.arena_bytes = 1 << 20;
    options.hosts = hosts;
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
    ProxyNetworkOptions network = options_of(GetParam());
    if (std::string_view(network.plugin.provider).ends_with("shm")) network.plugin.interface = "";
    auto worlds = join_all(accelerators, std::make_shared<InProcessFabric>(hosts), options, {},
                           proxy_networks(network));
    on_every_rank(ranks, [&](uint32_t rank) {
      const std::unique_ptr<World> mine = std::move(worlds[rank]);
      program(*mine);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Over, Libfabric, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(Libfabric, SignalsFollowPuts) {
  run_hosts(2, 2, [](World& world) {
    const std::string way = network_of(world)->way(1 - world.rank());
    promise(way.find(GetParam().order) != std::string::npos, way);
    signals_follow_puts(world, 60);
  });
  run_hosts(4, 2, [](World& world) { signals_follow_puts(world, 20, {.in_arena = false}); });
}

TEST_P(Libfabric, AFlushFreesSources) {
  run_hosts(4, 2, [](World& world) { flush_frees_sources(world); });
}

TEST_P(Libfabric, RingsKeepCredit) {
  run_hosts(2, 2, [](World& world) { rings_keep_credit(world, 1, 20); });
  run_hosts(3, 3, [](World& world) { rings_keep_credit(world, kRingSlots, 60); });
}

TEST_P(Libfabric, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST_P(Libfabric, BadRequestsAreRefused) {
  for (uint32_t what = 0; what < kBadRequests; ++what) {
    SCOPED_TRACE(what);
    run_hosts(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
  }
}

TEST_P(Libfabric, DeregisteringEndsAccesses) {
  for (uint32_t run = 0; run < 10; ++run) run_hosts(2, 2, deregistering_ends_accesses);
}

TEST_P(Libfabric, WhatWasPostedArrives) {
  for (uint32_t ending = 0; ending < kEndings; ++ending) {
    run_hosts(2, 2,
              [&](World& world) { what_was_posted_arrives(world, static_cast<Ending>(ending)); });
  }
}

TEST_P(Libfabric, CarriesPutsOfAnySize) {
  for (const uint32_t bytes : {4u, 4u << 10, (1u << 20) + 4, 5u << 20})
    run_hosts(2, 2, [&](World& world) { carries(world, bytes); });
}

TEST_P(Libfabric, NetworksComeAndGo) {
  for (uint32_t cycle = 0; cycle < 20; ++cycle)
    run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 1); });
}

TEST_P(Libfabric, SurvivorsRebuildAcrossHosts) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    signals_follow_puts(*smaller, 5);
  });
}
#endif

}  // namespace
}  // namespace tokenyard::testing
