/// The contract of networks over the plug-in of libfabric, between threads of this process, with
/// each way to keep order; and what is refused.
#include "fabric/network_kernel_definitions.hpp"

#include <gtest/gtest.h>
#include <signal.h>

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
const Way kPlainWays[] = {
    {"tcp", kPlain, "tcp;ofi_rxm", "in the network's order"},
    {"shm", kPlain, "shm", "puts are counted"},
};
const Way kOtherWays[] = {
    {"tcp_offsets", kShuffled, "offsets:0:tcp;ofi_rxm", "in the network's order"},
    {"tcp_counted", kShuffled, "counted:1:tcp;ofi_rxm", "puts are counted"},
    {"tcp_delivered", kShuffled, "delivered:2:tcp;ofi_rxm", "signals wait for puts"},
    {"shm_counted", kShuffled, "counted:3:shm", "puts are counted"},
};

ProxyNetworkOptions options_of(const Way& way) {
  return {.plugin = {.library = way.library, .provider = way.provider, .interface = "127.0.0.1"}};
}

class Libfabric : public ::testing::TestWithParam<Way> {
 protected:
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

class LibfabricPlain : public Libfabric {};
std::string name_of(const ::testing::TestParamInfo<Way>& way) {
  return way.param.name;
}
INSTANTIATE_TEST_SUITE_P(Over, Libfabric, ::testing::ValuesIn(kPlainWays), name_of);
INSTANTIATE_TEST_SUITE_P(OverOthers, Libfabric, ::testing::ValuesIn(kOtherWays), name_of);
/// Order and memory modes change nothing of these.
INSTANTIATE_TEST_SUITE_P(Over, LibfabricPlain, ::testing::ValuesIn(kPlainWays), name_of);

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

TEST_P(Libfabric, PairsFillTheQueue) {
  run_hosts(2, 2, [](World& world) { pairs_fill_the_queue(world, 500); });
}

TEST_P(Libfabric, RingsKeepCredit) {
  run_hosts(2, 2, [](World& world) { rings_keep_credit(world, 1, 20); });
  run_hosts(3, 3, [](World& world) { rings_keep_credit(world, kRingSlots, 60); });
}

TEST_P(LibfabricPlain, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST_P(LibfabricPlain, BadRequestsAreRefused) {
  for (uint32_t what = 0; what < kBadRequests; ++what) {
    SCOPED_TRACE(what);
    run_hosts(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
  }
}

TEST_P(LibfabricPlain, AFaultEndsWithItsExchange) {
  run_hosts(2, 2, a_fault_ends_with_its_exchange);
}

TEST_P(Libfabric, DeregisteringEndsAccesses) {
  for (uint32_t run = 0; run < 5; ++run) run_hosts(2, 2, deregistering_ends_accesses);
}

TEST_P(LibfabricPlain, WhatWasPostedArrives) {
  for (uint32_t ending = 0; ending < kEndings; ++ending) {
    run_hosts(2, 2,
              [&](World& world) { what_was_posted_arrives(world, static_cast<Ending>(ending)); });
  }
}

TEST_P(Libfabric, CarriesPutsOfAnySize) {
  for (const uint32_t bytes : {4u, 4u << 10, (1u << 20) + 4, 5u << 20})
    run_hosts(2, 2, [&](World& world) { carries(world, bytes); });
}

TEST_P(LibfabricPlain, NetworksComeAndGo) {
  for (uint32_t cycle = 0; cycle < 10; ++cycle)
    run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 1); });
}

TEST_P(LibfabricPlain, SurvivorsRebuildAcrossHosts) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    signals_follow_puts(*smaller, 5);
  });
}
TEST(LibfabricPlugin, WhatIsMissingIsRefusedByName) {
  const TransportPlace place{
      .rank = 0, .ranks = 2, .epoch = 1, .secret = "", .address = "", .queues = 1};
  const auto why = [&](const PluginOptions& options) -> std::string {
    try {
      (void)make_by_plugin(options, place);
      return "nothing";
    } catch (const Unsupported& error) {
      return error.what();
    }
  };
  EXPECT_NE(why({.library = "libnowhere.so", .provider = "", .interface = ""}).find("libnowhere"),
            std::string::npos);
  EXPECT_NE(why({.library = "libc.so.6", .provider = "", .interface = ""})
                .find("it is no plug-in of Tokenyard"),
            std::string::npos);
  const std::string provider = why({.library = kPlain, .provider = "none", .interface = ""});
  EXPECT_NE(provider.find("none is not supported here: libfabric finds here tcp;ofi_rxm"),
            std::string::npos)
      << provider;
  const std::string card =
      why({.library = kPlain, .provider = "tcp;ofi_rxm", .interface = "nocard"});
  EXPECT_NE(card.find("tcp;ofi_rxm on nocard"), std::string::npos) << card;
}

/// Some providers would write a trace of a crash.
TEST(LibfabricPlugin, SignalHandlersStayAsTheyWere) {
  struct sigaction before {
  }, after{};
  sigaction(SIGSEGV, nullptr, &before);
  (void)make_by_plugin(
      {.library = kPlain, .provider = "tcp;ofi_rxm", .interface = "lo"},
      {.rank = 0, .ranks = 2, .epoch = 1, .secret = "", .address = "", .queues = 1});
  sigaction(SIGSEGV, nullptr, &after);
  EXPECT_EQ(after.sa_sigaction, before.sa_sigaction);
}

TEST(LibfabricPlugin, RanksWithOtherTransportsAreNamed) {
  WorldOptions options{.timeout = std::chrono::seconds(60), .arena_bytes = 1 << 20, .hosts = 2};
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < 2; ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  const auto one = proxy_networks(options_of(kPlainWays[0]));
  const auto other = proxy_networks({.tcp = {.address = "127.0.0.1"}});
  try {
    (void)join_all(accelerators, std::make_shared<InProcessFabric>(2), options, {},
                   [&](const NetworkPlace& place, TimePoint until) {
                     return (place.bootstrap.rank() == 0 ? one : other)(place, until);
                   });
    ADD_FAILURE() << "they were connected";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "transport");
    EXPECT_EQ(error.expected, "libfabric:tcp;ofi_rxm, as on rank 0");
    EXPECT_EQ(error.seen, "tcp");
    EXPECT_EQ(error.rank, 1u);
  }
}
#endif

}  // namespace
}  // namespace tokenyard::testing
