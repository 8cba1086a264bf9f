/// Worlds between simulated hosts, whose ranks are threads of this process, over any network.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network/network.hpp"
#include "fabric/worlds.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {

/// Worlds over a network, and what loses all packets between two of their ranks from then on. The
/// ways over sockets have none: nftables and cables do that between network namespaces.
struct ConnectedWorlds {
  std::vector<std::unique_ptr<World>> ends;
  std::function<void(uint32_t one, uint32_t other)> cut = {};
};

/// A way to work off queues.
struct NetworkWay {
  std::string name;
  std::function<ConnectedWorlds(uint32_t ranks, uint32_t hosts)> make;
  std::string told = {};          ///< in the topology, about a far rank
  std::vector<uint32_t> sizes;    ///< of large puts
  bool shares_queues = false;     ///< threads may post to one queue at the same time
  uint32_t cycles = 1000;         ///< of making and ending
  bool differs_in_order = false;  ///< from another way, and in nothing else
};

inline void PrintTo(const NetworkWay& way, std::ostream* out) {
  *out << way.name;
}

inline std::vector<std::shared_ptr<Accelerator>> host_accelerators(uint32_t ranks) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  return accelerators;
}

/// Returns worlds of ranks on simulated hosts, over `network`, or over `card` without one.
inline std::vector<std::unique_ptr<World>> worlds_between_hosts(
    uint32_t ranks, uint32_t hosts, size_t arena_bytes, const MakeNetwork& network,
    const SimulatedCard& card = {}, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  WorldOptions options;
  options.timeout = timeout;
  options.arena_bytes = arena_bytes;
  options.hosts = hosts;
  return join_all(host_accelerators(ranks), std::make_shared<InProcessFabric>(hosts), options, card,
                  network);
}

/// Runs a program as every rank, which ends its world.
inline void run_as_ranks(std::vector<std::unique_ptr<World>> worlds, const Program& program) {
  on_every_rank(static_cast<uint32_t>(worlds.size()), [&](uint32_t rank) {
    const std::unique_ptr<World> mine = std::move(worlds[rank]);
    program(*mine);
  });
}

}  // namespace tokenyard::testing
