/// The contract of networks over simulated cards, and over proxies and TCP.
#include "fabric/network_kernel_definitions.hpp"
#include "fabric/network_suite.hpp"
#include "fabric/proxy/proxy_network.hpp"

namespace tokenyard::testing {
namespace {

/// The card that takes our own requests (0), or the one that reads mlx5 entries from rings of so
/// many blocks.
NetworkWay simulated(uint32_t mlx5_slots) {
  return {.name = mlx5_slots == 0 ? std::string("requests") : fmt::format("mlx5_{}", mlx5_slots),
          .make =
              [mlx5_slots](uint32_t ranks, uint32_t hosts) {
                return ConnectedWorlds{worlds_between_hosts(
                    ranks, hosts, 1 << 20, {},
                    {.run = cards_on_threads(), .options = {.mlx5_slots = mlx5_slots}})};
              },
          .told = "simulated network",
          .sizes = {64 << 20},
          .shares_queues = mlx5_slots != 0};
}

NetworkWay tcp(uint32_t paths) {
  return {.name = fmt::format("tcp_{}", paths),
          .make =
              [paths](uint32_t ranks, uint32_t hosts) {
                return ConnectedWorlds{worlds_between_hosts(
                    ranks, hosts, 1 << 20,
                    proxy_networks({.tcp = {.address = "127.0.0.1", .paths = paths}}))};
              },
          .told = "proxy/tcp",
          .sizes = {4, 4 << 10, 33 << 10, (1 << 20) + 4, 16 << 20}};
}

INSTANTIATE_TEST_SUITE_P(Over, NetworkContract,
                         ::testing::Values(simulated(0), simulated(4), simulated(64), tcp(1),
                                           tcp(3)),
                         name_of_way);

}  // namespace
}  // namespace tokenyard::testing
