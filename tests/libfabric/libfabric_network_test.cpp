/// The contract of networks over the plug-in of libfabric, between threads of this process, with
/// each way to keep order; and what is refused.
#include "fabric/network_kernel_definitions.hpp"

#include <signal.h>

#include "fabric/network_suite.hpp"
#include "fabric/proxy/proxy_network.hpp"

namespace tokenyard::testing {
namespace {

#ifndef TOKENYARD_LIBFABRIC
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NetworkContract);
TEST(Libfabric, KeepsTheContract) {
  GTEST_SKIP() << "this machine has no libfabric (Debian: libfabric-dev)";
}
#else
constexpr const char *kPlain = TOKENYARD_LIBFABRIC, *kShuffled = TOKENYARD_LIBFABRIC_SHUFFLED;

ProxyNetworkOptions options_of(const std::string& library, const std::string& provider) {
  const bool has_address = !provider.ends_with("shm");
  return {.plugin = {.library = library,
                     .provider = provider,
                     .interface = has_address ? "127.0.0.1" : ""}};
}

/// `order`: as the way of a peer names it.
NetworkWay over(const char* name, const char* library, const char* provider, const char* order) {
  return {.name = name,
          .make =
              [=](uint32_t ranks, uint32_t hosts) {
                return ConnectedWorlds{worlds_between_hosts(
                    ranks, hosts, 1 << 20, proxy_networks(options_of(library, provider)))};
              },
          .told = order,
          .sizes = {4, 4 << 10, (1 << 20) + 4, 5 << 20},
          .cycles = 20};  // Each takes a tenth of a second and more; 1,000 have been run by hand.
}
/// Over the stand-in, which keeps order by other means.
NetworkWay shuffled(const char* name, const char* provider, const char* order) {
  NetworkWay way = over(name, kShuffled, provider, order);
  way.differs_in_order = true;
  return way;
}

INSTANTIATE_TEST_SUITE_P(
    Over, NetworkContract,
    ::testing::Values(over("tcp", kPlain, "tcp;ofi_rxm", "in the network's order"),
                      over("shm", kPlain, "shm", "puts are counted"),
                      shuffled("tcp_offsets", "offsets:0:tcp;ofi_rxm", "in the network's order"),
                      shuffled("tcp_counted", "counted:1:tcp;ofi_rxm", "puts are counted"),
                      shuffled("tcp_delivered", "delivered:2:tcp;ofi_rxm", "signals wait for puts"),
                      shuffled("shm_counted", "counted:3:shm", "puts are counted")),
    name_of_way);

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
  const auto one = proxy_networks(options_of(kPlain, "tcp;ofi_rxm"));
  const auto other = proxy_networks({.tcp = {.address = "127.0.0.1"}});
  try {
    (void)worlds_between_hosts(2, 2, 1 << 20, [&](const NetworkPlace& place, TimePoint until) {
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
