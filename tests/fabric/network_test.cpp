#include "fabric/network_contract.hpp"
#include "fabric/world_access.hpp"

#include <gtest/gtest.h>

#include "fabric/worlds.hpp"

namespace tokenyard::testing {
namespace {

void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program) {
  WorldOptions options;
  options.timeout = std::chrono::seconds(20);
  options.arena_bytes = 1 << 20;
  options.hosts = hosts;
  run_threads("host", ranks, options, program);
}

TEST(SimulatedNetwork, PutsArriveBeforeTheirSignal) {
  run_hosts(2, 2, [](World& world) { keeps_order_over_network(world, 60); });
  run_hosts(4, 2, [](World& world) { keeps_order_over_network(world, 30); });
  run_hosts(3, 3, [](World& world) { keeps_order_over_network(world, 30); });
}

TEST(SimulatedNetwork, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST(SimulatedNetwork, HostsAreNamedInTheTopology) {
  run_hosts(4, 2, [](World& world) {
    for (uint32_t rank = 0; rank < world.size(); ++rank) {
      const bool near = world.topology().host_of[rank] == world.topology().host_of[world.rank()];
      promise(near == (arena_of(world).base_of(rank) != nullptr),
              "exactly the near arenas must be mapped");
      promise(near == world.topology().peers[rank].why_not.empty(),
              "exactly the far ranks must have a reason");
    }
    promise(world.topology().hosts == 2, "the topology must have two hosts");
    promise(world.topology().host_of == std::vector<uint32_t>{0, 0, 1, 1},
            "the hosts must have two ranks each");
    const uint32_t far = world.rank() < 2 ? 3 : 0;
    promise(world.topology().peers[far].reach == Reach::put_signal,
            "far ranks must have put/signal reach");
    promise(network_of(world)->queues()[far] != nullptr, "far ranks must have a queue");
    promise(network_of(world)->queues()[world.rank()] == nullptr, "near ranks must have no queue");
    promise(world.topology().text().find("simulated network") != std::string::npos,
            "the text must name the network");
  });
  EXPECT_THROW(run_hosts(3, 2, [](World&) {}), InvalidArgument);
}

TEST(SimulatedNetwork, SurvivorsRebuildAcrossHosts) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    promise(smaller->topology().host_of == std::vector<uint32_t>{0, 1, 1},
            "survivors must keep their hosts");
    keeps_order_over_network(*smaller, 5);
  });
}

TEST(SimulatedNetwork, AWorldWithinReachHasNone) {
  run_hosts(2, 1, [](World& world) {
    promise(network_of(world) == nullptr, "a world without far ranks must have no network");
  });
}

}  // namespace
}  // namespace tokenyard::testing
