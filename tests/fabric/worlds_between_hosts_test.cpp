/// Worlds of processes on several hosts, on one machine: hosts by name, and network namespaces.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/mapping.hpp"
#include "collectives/network_namespaces.hpp"
#include "fabric/free_port.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/proxy/apart_fabric.hpp"
#include "fabric/proxy/network_options.hpp"
#include "fabric/worlds.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/job.hpp"
#include "tokenyard/low_latency.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {
namespace {

using collectives::NetworkNamespaces;
using namespace std::chrono_literals;

constexpr const char* kSecret = "a secret for tests only";

/// Returns the sentence of what `call` throws.
template <class Thrown>
std::string sentence_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  promise(false, "nothing was thrown");
  return "";
}

class WorldsBetweenHosts : public ::testing::Test {
 protected:
  std::unique_ptr<World> connect(uint32_t rank, uint32_t ranks, const std::string& host_name,
                                 const NetworkOptions& network = {},
                                 const std::string& store = "127.0.0.1") const {
    return connect_world({.host = store,
                          .port = port_,
                          .rank = rank,
                          .size = ranks,
                          .local_rank = rank,
                          .secret = kSecret,
                          .host_name = host_name},
                         "host", {.timeout = 60s, .arena_bytes = 1 << 20, .network = network});
  }
  std::shared_ptr<Job> join(uint32_t rank, uint32_t ranks, const std::string& host) const {
    JobOptions options;
    options.store = fmt::format("tcp://127.0.0.1:{}", port_);
    options.secret = kSecret;
    options.rank = rank;
    options.size = ranks;
    options.host = host;
    options.timeout = 60s;
    return Job::connect(options);
  }
  static std::unique_ptr<World> world_of(Job& job, const NetworkOptions& network = {}) {
    return job.world("host", {.timeout = 60s, .arena_bytes = 1 << 20, .network = network});
  }
  /// Waits until so many ranks have come here. A rank that leaves its job earlier is lost to
  /// others.
  void await_all(uint32_t ranks) {
    auto& came = *reinterpret_cast<std::atomic<uint32_t>*>(shared_.base());
    ++came;
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (came < ranks && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(2ms);
  }
  static void expect_zero(RankProcesses& ranks, uint32_t count) {
    for (uint32_t rank = 0; rank < count; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }
  const uint16_t port_ = free_port();

 private:
  Mapping shared_ = Mapping::with_children(4096);
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Three ranks of host "a" and one of host "b".
TEST_F(WorldsBetweenHosts, RanksOfOneNameShareMemoryAndOthersTheNetwork) {
  RankProcesses ranks(4, [&](uint32_t rank) {
    const auto host = [](uint32_t of) { return of == 3 ? 1u : 0u; };
    const auto world = connect(rank, 4, host(rank) == 0 ? "a" : "b");
    const Topology& topology = world->topology();
    promise(topology.hosts == 2, "two hosts");
    for (uint32_t peer = 0; peer < 4; ++peer) {
      const PeerReach& reach = topology.peers[peer];
      const Reach expected = peer == rank               ? Reach::self
                             : host(peer) == host(rank) ? Reach::load_store
                                                        : Reach::put_signal;
      promise(topology.host_of[peer] == host(peer), "host_of");
      promise(reach.reach == expected, topology.text());
      promise(holds(reach.how, "proxy/tcp") == (expected == Reach::put_signal), reach.how);
      promise(reach.why_not.empty() == (expected != Reach::put_signal), reach.why_not);
    }
    signals_follow_puts(*world, 5);
  });
  expect_zero(ranks, 4);
}

/// Two hosts of one rank each are in each domain: rails and paths go by domain.
TEST_F(WorldsBetweenHosts, RanksOfADomainReachOneAnotherByLoadStore) {
  RankProcesses ranks(4, [&](uint32_t rank) {
    setenv("TOKENYARD_DOMAIN", rank < 2 ? "rack 0" : "rack 1", 1);
    const auto world = connect(rank, 4, fmt::format("host {}", rank));
    const Topology& topology = world->topology();
    promise(topology.host_of == std::vector<uint32_t>{0, 0, 1, 1}, topology.text());
    promise(topology.peers[rank ^ 1].reach == Reach::load_store, topology.text());
    promise(topology.peers[rank ^ 2].reach == Reach::put_signal, topology.text());
    signals_follow_puts(*world, 5);
    const ExpertParallel exchange(*world,
                                  {.experts = 8, .hidden = 128, .topk = 2, .tokens_max = 4});
  });
  expect_zero(ranks, 4);
}

TEST_F(WorldsBetweenHosts, ADomainMayBeNoMoreThanAHost) {
  RankProcesses ranks(2, [&](uint32_t rank) {
    setenv("TOKENYARD_DOMAIN", "host", 1);
    const auto world = connect(rank, 2, rank == 0 ? "a" : "b");
    promise(world->topology().peers[1 - rank].reach == Reach::put_signal, "they are apart");
  });
  expect_zero(ranks, 2);
}

TEST_F(WorldsBetweenHosts, AJobsHostNameComesFromTheEnvironment) {
  RankProcesses ranks(2, [&](uint32_t rank) {
    setenv("TOKENYARD_HOST_NAME", rank == 0 ? "a" : "b", 1);
    setenv("TOKENYARD_NETWORK_CONNECTIONS", "3", 1);
    const auto job = join(rank, 2, "");
    const auto world = world_of(*job);
    const PeerReach& other = world->topology().peers[1 - rank];
    promise(other.reach == Reach::put_signal && holds(other.how, "3 connections"), other.how);
    signals_follow_puts(*world, 5);
  });
  expect_zero(ranks, 2);
}

TEST_F(WorldsBetweenHosts, LowLatencySaysThatItPuts) {
  RankProcesses ranks(2, [&](uint32_t rank) {
    const auto world = connect(rank, 2, rank == 0 ? "a" : "b");
    LowLatency exchange(*world, {.experts = 8, .hidden = 128, .topk = 2, .tokens_max = 4});
    promise(exchange.paths()[rank] == LowLatencyPath::self, "the path to itself");
    promise(exchange.paths()[1 - rank] == LowLatencyPath::put, "the path to the other host");
    exchange.close();
  });
  expect_zero(ranks, 2);
}

/// No rank reaches another one in any way.
class SplitFabric final : public ApartFabric {
 public:
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override {
    Ground ground = ApartFabric::prepare(bootstrap, request, until);
    for (PeerReach& reach : ground.peers)
      if (reach.reach == Reach::put_signal) reach = {.how = "nothing", .why_not = "no peer access"};
    return ground;
  }
};

TEST(Reach, AnExchangeIsRefusedByASentenceWhereARankIsOutOfReach) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < 2; ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  const auto worlds =
      join_all(accelerators, std::make_shared<SplitFabric>(), {.arena_bytes = 1 << 20});
  on_every_rank(2, [&](uint32_t rank) {
    const std::string refusal = sentence_of<Unsupported>([&] {
      (void)ExpertParallel(*worlds[rank],
                           {.experts = 8, .hidden = 128, .topk = 2, .tokens_max = 4});
    });
    promise(holds(refusal, "cannot load from and store to rank"), refusal);
    promise(holds(refusal, "no peer access") == (rank == 0), refusal);
    worlds[rank]->barrier("refused");
  });
}

TEST_F(WorldsBetweenHosts, OptionsThatDifferAreNamedOnEveryRank) {
  RankProcesses ranks(2, [&](uint32_t rank) {
    const auto job = join(rank, 2, rank == 0 ? "a" : "b");
    const std::string refusal =
        sentence_of<InvalidArgument>([&] { (void)world_of(*job, {.queues = rank + 1}); });
    await_all(2);
    promise(holds(refusal, "queues") && holds(refusal, "rank 1"), refusal);
  });
  expect_zero(ranks, 2);
}

TEST_F(WorldsBetweenHosts, ARankListensWhereItIsTold) {
  const uint16_t port = free_port();
  RankProcesses ranks(2, [&](uint32_t rank) {
    const auto job = join(rank, 2, rank == 0 ? "a" : "b");
    signals_follow_puts(*world_of(*job, {.ports = fmt::format("{}-{}", port, port + 50)}), 2);
    // Two ranks do not fit on one port.
    const std::string refusal =
        sentence_of<OsError>([&] { (void)world_of(*job, {.ports = fmt::format("{}", port)}); });
    await_all(2);
    promise(holds(refusal, "rank"), refusal);
  });
  expect_zero(ranks, 2);
}

TEST_F(WorldsBetweenHosts, AHostNameThatIsTooLongIsRefused) {
  EXPECT_THROW((void)connect(0, 1, std::string(300, 'a')), Error);
}

/// Each in an environment of its own.
class NetworkOptionsOfASite : public ::testing::Test {
 protected:
  ~NetworkOptionsOfASite() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  static InvalidArgument refusal_of(const NetworkOptions& options) {
    try {
      (void)proxy_options_of(options);
    } catch (const InvalidArgument& error) {
      return error;
    }
    return InvalidArgument("nothing", "an error", "none");
  }

 private:
  std::vector<std::string> set_;
};

TEST_F(NetworkOptionsOfASite, OptionsComeBeforeVariablesAndDefaultsLast) {
  EXPECT_EQ(proxy_options_of({}).queues_per_peer, 4u);
  EXPECT_EQ(proxy_options_of({}).proxy.grace, 5s);
  set("TOKENYARD_NETWORK_INTERFACES", "lo");
  set("TOKENYARD_NETWORK_PORTS", "4000-4010");
  set("TOKENYARD_NETWORK_CONNECTIONS", "3");
  set("TOKENYARD_NETWORK_QUEUES", "7");
  set("TOKENYARD_NETWORK_QUEUE_DEPTH", "8");
  set("TOKENYARD_NETWORK_TIMEOUT", "2.5");
  const ProxyNetworkOptions site = proxy_options_of({});
  EXPECT_EQ(site.tcp.interfaces, std::vector<std::string>{"lo"});
  EXPECT_EQ(site.tcp.port_first, 4000);
  EXPECT_EQ(site.tcp.port_last, 4010);
  EXPECT_EQ(site.tcp.paths, 3u);
  EXPECT_EQ(site.queues_per_peer, 7u);
  EXPECT_EQ(site.proxy.depth, 8u);
  EXPECT_EQ(site.proxy.grace, 2500ms);
  const ProxyNetworkOptions own =
      proxy_options_of({.ports = "5000", .connections = 6, .queues = 1, .timeout = 3s});
  EXPECT_EQ(own.tcp.port_first, 5000);
  EXPECT_EQ(own.tcp.port_last, 5000);
  EXPECT_EQ(own.tcp.paths, 6u);
  EXPECT_EQ(own.queues_per_peer, 1u);
  EXPECT_EQ(own.proxy.grace, 3s);
}

TEST_F(NetworkOptionsOfASite, UnusableValuesAreNamed) {
  EXPECT_EQ(refusal_of({.connections = 7}).argument, "network.connections");
  EXPECT_EQ(refusal_of({.queue_depth = 65}).argument, "network.queue_depth");
  EXPECT_EQ(refusal_of({.queues = 5000}).argument, "network.queues");
  for (const char* ports : {"0", "x", "70000", "20-10", "-5", "5-"})
    EXPECT_EQ(refusal_of({.ports = ports}).argument, "network.ports") << ports;
  for (const char* interfaces : {"nosuchcard0", "lo,", "lo,lo"})
    EXPECT_EQ(refusal_of({.interfaces = interfaces}).argument, "network.interfaces") << interfaces;
  EXPECT_TRUE(holds(refusal_of({.interfaces = "nosuchcard0"}).expected, "lo (127.0.0.1)"));
  for (const auto& [name, value] :
       {std::pair("TOKENYARD_NETWORK_QUEUES", "many"), std::pair("TOKENYARD_NETWORK_TIMEOUT", "-1"),
        std::pair("TOKENYARD_NETWORK_CONNECTIONS", "0"),
        std::pair("TOKENYARD_NETWORK_GPU_MEMORY", "yes")}) {
    setenv(name, value, 1);
    EXPECT_EQ(refusal_of({}).argument, name);
    unsetenv(name);
  }
}

TEST_F(NetworkOptionsOfASite, WhatATransportCannotObeyIsNamed) {
  for (const auto& [name, value] :
       {std::pair("GID_INDEX", "3"), std::pair("SERVICE_LEVEL", "0"), std::pair("PKEY", "0x8001"),
        std::pair("MTU", "4096"), std::pair("RETRY_COUNT", "7"),
        std::pair("RETRY_TIMEOUT", "14")}) {
    const std::string variable = std::string("TOKENYARD_NETWORK_") + name;
    setenv(variable.c_str(), value, 1);
    EXPECT_EQ(refusal_of({}).argument, variable);
    EXPECT_EQ(refusal_of({.transport = "libfabric"}).argument, variable);
    unsetenv(variable.c_str());
  }
  EXPECT_EQ(refusal_of({.gid_index = 0}).argument, "network.gid_index");
  EXPECT_EQ(refusal_of({.gpu_memory = false}).argument, "network.gpu_memory");
  EXPECT_EQ(proxy_options_of({.transport = "libfabric", .gpu_memory = true}).gpu_memory, true);
  EXPECT_EQ(refusal_of({.mtu = 4096}).argument, "network.mtu");
  EXPECT_TRUE(holds(refusal_of({.mtu = 4096}).expected, "only cards"));
  EXPECT_EQ(refusal_of({.traffic_class = 256}).argument, "network.traffic_class");
  EXPECT_EQ(proxy_options_of({.traffic_class = 104}).tcp.traffic_class, 104);
  set("TOKENYARD_NETWORK_TRAFFIC_CLASS", "0");
  EXPECT_EQ(proxy_options_of({}).tcp.traffic_class, 0);
  EXPECT_EQ(refusal_of({.transport = "libfabric"}).argument, "TOKENYARD_NETWORK_TRAFFIC_CLASS");
}

TEST_F(NetworkOptionsOfASite, InterfacesMayBeGivenPerLocalRank) {
  const NetworkOptions options{.interfaces = "0=lo, 1=127.0.0.1"};
  EXPECT_EQ(proxy_options_of(options, 0).tcp.interfaces, std::vector<std::string>{"lo"});
  EXPECT_EQ(proxy_options_of(options, 1).tcp.interfaces, std::vector<std::string>{"127.0.0.1"});
  EXPECT_THROW((void)proxy_options_of(options, 2), InvalidArgument);
  EXPECT_EQ(refusal_of({.interfaces = "x=lo"}).argument, "network.interfaces");
  EXPECT_EQ(refusal_of({.interfaces = "1="}).argument, "network.interfaces");
}

TEST_F(NetworkOptionsOfASite, ATransportIsChosenByName) {
  EXPECT_EQ(proxy_options_of({}).plugin.library, "");
  EXPECT_TRUE(holds(refusal_of({.transport = "pigeons"}).argument, "network.transport"));
  set("TOKENYARD_NETWORK", "pigeons");
  EXPECT_EQ(refusal_of({}).argument, "TOKENYARD_NETWORK");
  EXPECT_EQ(proxy_options_of({.transport = "tcp"}).plugin.library, "");
  set("TOKENYARD_NETWORK", "/a/plugin.so:verbs;ofi_rxm");
  EXPECT_EQ(proxy_options_of({}).plugin.library, "/a/plugin.so");
  EXPECT_EQ(proxy_options_of({}).plugin.provider, "verbs;ofi_rxm");
  set("TOKENYARD_NETWORK", "libfabric");
  set("TOKENYARD_NETWORK_INTERFACES", "rdmap0");
  const ProxyNetworkOptions site = proxy_options_of({});
  EXPECT_EQ(site.plugin.library, "libtokenyard_libfabric.so");
  EXPECT_EQ(site.plugin.provider, "");
  EXPECT_EQ(site.plugin.interface, "rdmap0");
  // These are TCP's.
  EXPECT_EQ(refusal_of({.ports = "5000"}).argument, "network.ports");
  EXPECT_EQ(refusal_of({.connections = 2}).argument, "network.connections");
  EXPECT_EQ(refusal_of({.interfaces = "rdmap0,rdmap1"}).argument, "network.interfaces");
}

TEST_F(NetworkOptionsOfASite, AVariableThatDoesNotExistIsNamed) {
  set("TOKENYARD_NETWORK_PORT", "4000");
  const InvalidArgument refusal = refusal_of({});
  EXPECT_EQ(refusal.argument, "TOKENYARD_NETWORK_PORT");
  EXPECT_TRUE(holds(refusal.expected, "TOKENYARD_NETWORK_PORTS"));
}

/// Hosts by nothing but their networks: they have one boot id, and no names.
TEST_F(WorldsBetweenHosts, NetworkNamespacesAreHosts) {
  std::optional<NetworkNamespaces> network;
  try {
    network.emplace(2);
  } catch (const std::runtime_error& error) {
    GTEST_SKIP() << "no network namespaces here: " << error.what();
  }
  RankProcesses ranks(4, [&](uint32_t rank) {
    network->enter(rank / 2);
    const auto world = connect(rank, 4, "", {}, NetworkNamespaces::address(0));
    promise(world->topology().hosts == 2, world->topology().text());
    promise(world->topology().peers[rank ^ 1].reach == Reach::load_store, "within a host");
    const PeerReach& far = world->topology().peers[rank ^ 2];
    promise(holds(far.how, NetworkNamespaces::address(1 - rank / 2)), far.how);
    signals_follow_puts(*world, 10);
  });
  expect_zero(ranks, 4);
}

/// Memory of the host cannot be mapped elsewhere, whatever its ranks call their domain.
TEST_F(WorldsBetweenHosts, ADomainOverMachinesIsRefusedOnTheHost) {
  std::optional<NetworkNamespaces> network;
  try {
    network.emplace(2);
  } catch (const std::runtime_error& error) {
    GTEST_SKIP() << "no network namespaces here: " << error.what();
  }
  RankProcesses ranks(2, [&](uint32_t rank) {
    network->enter(rank);
    setenv("TOKENYARD_DOMAIN", "rack", 1);
    const std::string refusal = sentence_of<InvalidArgument>(
        [&] { (void)connect(rank, 2, "", {}, NetworkNamespaces::address(0)); });
    promise(holds(refusal, "domain") && holds(refusal, "'rack'") && holds(refusal, "rank 1"),
            refusal);
  });
  expect_zero(ranks, 2);
}

}  // namespace
}  // namespace tokenyard::testing
