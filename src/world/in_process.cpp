/// Worlds whose ranks are threads of this process.
#include "world/in_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/in_process_mesh.hpp"
#include "fabric/network/given_option.hpp"
#include "fabric/proxy/network_options.hpp"
#include "gin/gin_options.hpp"
#include "ibgda/ibgda_options.hpp"
#include "simt/host_accelerator.hpp"
#include "world/parts.hpp"

namespace tokenyard {

namespace {

/// A rank's network card: a thread that runs one kernel.
class AsideThread final : public Aside {
 public:
  AsideThread(const KernelEntry& kernel, const LaunchShape& shape, const void* params)
      : thread_([kernel, shape, copied = copy_of(kernel, params)] {
          try {
            simt::HostAccelerator card([] {});
            card.launch(kernel, shape, Stream{}, copied.data());
          } catch (const std::exception& error) {
            // Ranks that wait for its work time out and name the peer.
            fmt::print(stderr, "tokenyard: a simulated network card failed: {}\n", error.what());
          }
        }) {}

 private:
  static std::vector<std::max_align_t> copy_of(const KernelEntry& kernel, const void* params) {
    std::vector<std::max_align_t> copied(kernel.params_bytes / sizeof(std::max_align_t) + 1);
    std::memcpy(copied.data(), params, kernel.params_bytes);
    return copied;
  }

  std::jthread thread_;
};

/// Returns what connects ranks on simulated hosts: proxies where a transport is named, else
/// nothing, as simulated cards do. These have no options. Throws InvalidArgument, which names an
/// option that cannot be obeyed.
MakeNetwork network_of(const NetworkOptions& options) {
  if (!options.transport.empty()) {
    if (gin::asks_for_gin(options) || ibgda::asks_for_ibgda(options))
      throw InvalidArgument("network.transport",
                            "\"tcp\" or \"libfabric\" for ranks that are threads on the host",
                            "'" + options.transport + "'");
    ProxyNetworkOptions chosen = proxy_options_of(options);
    if (chosen.tcp.interfaces.empty()) chosen.tcp.address = "127.0.0.1";
    return proxy_networks(chosen);
  }
  const auto refuse = [](const auto& option, const char* name) {
    using Value = std::remove_cvref_t<decltype(option)>;
    refuse_given(given_option(option, std::optional<Value>(), name),
                 "simulated cards have no options; set network.transport, too");
  };
  const auto refuse_optional = [](const std::optional<uint32_t>& option, const char* name) {
    refuse_given(given_option(option, std::optional<uint32_t>(), name),
                 "simulated cards have no options; set network.transport, too");
  };
  refuse(options.interfaces, "interfaces");
  refuse(options.ports, "ports");
  refuse(options.connections, "connections");
  refuse(options.queues, "queues");
  refuse(options.queue_depth, "queue_depth");
  refuse(options.timeout.count(), "timeout");
  refuse_given(given_option(options.gpu_memory, std::optional<bool>(), "gpu_memory"),
               "simulated cards have no options; set network.transport, too");
  refuse_optional(options.gid_index, "gid_index");
  refuse_optional(options.traffic_class, "traffic_class");
  refuse_optional(options.service_level, "service_level");
  refuse(options.pkey, "pkey");
  refuse(options.mtu, "mtu");
  refuse_optional(options.retry_count, "retry_count");
  refuse(options.retry_timeout, "retry_timeout");
  return {};
}

}  // namespace

std::vector<std::unique_ptr<World>> join_all(
    const std::vector<std::shared_ptr<Accelerator>>& accelerators, std::shared_ptr<Fabric> fabric,
    const WorldOptions& options, const SimulatedCard& card, const MakeNetwork& network) {
  const auto ranks = static_cast<uint32_t>(accelerators.size());
  auto ends = InProcessMesh::make(ranks);
  std::vector<uint32_t> absent, present;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    (accelerators[rank] ? present : absent).push_back(rank);
  std::vector<std::unique_ptr<World>> worlds(ranks);
  std::vector<std::exception_ptr> failures(ranks);
  const auto absences = std::make_shared<const AbsenceWatch>();
  {
    // Joining is collective, so each rank needs its own thread until it is done.
    std::vector<std::jthread> threads;
    const auto join_one = [&](uint32_t rank) {
      try {
        const Membership present_as = Membership::of(*ends[rank], absent);
        worlds[rank] = join(present_as, std::move(ends[rank]), accelerators[rank], fabric, options,
                            absences, card, network);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    };
    try {
      for (const uint32_t rank : present) threads.emplace_back(join_one, rank);
    } catch (const std::system_error& error) {
      // The others learn that these ranks have left, and do not wait for the deadline.
      const uint32_t first = present[threads.size()];
      std::fill(ends.begin() + static_cast<ptrdiff_t>(first), ends.end(), nullptr);
      threads.clear();
      throw OsError(fmt::format("start a thread for rank {} of {}", first, ranks),
                    error.code().value(), error.code().message());
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return worlds;
}

RunAside cards_on_threads() {
  return [](const KernelEntry& kernel, const LaunchShape& shape, const void* params) {
    return std::make_unique<AsideThread>(kernel, shape, params);
  };
}

std::vector<std::unique_ptr<World>> World::in_process(uint32_t ranks, const std::string& device,
                                                      const WorldOptions& options) {
  return in_process_without({}, ranks, device, options);
}

std::vector<std::unique_ptr<World>> in_process_without(const std::vector<uint32_t>& absent,
                                                       uint32_t ranks, const std::string& device,
                                                       const WorldOptions& options) {
  if (ranks == 0) throw InvalidArgument("ranks", "at least 1", "0");
  if (device == "cuda") return in_process_cuda(absent, ranks, options);
  if (device != "host") throw InvalidArgument("device", "'host' or 'cuda'", "'" + device + "'");
  if (options.hosts == 0 || ranks % options.hosts != 0) {
    throw InvalidArgument("hosts", fmt::format("a divisor of the {} ranks", ranks),
                          fmt::format("{}", options.hosts));
  }
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    accelerators.push_back(std::make_shared<simt::HostAccelerator>(options.interrupt));
  }
  for (const uint32_t rank : absent) accelerators.at(rank) = nullptr;
  return join_all(accelerators, std::make_shared<InProcessFabric>(options.hosts), options,
                  {.run = cards_on_threads()}, network_of(options.network));
}

}  // namespace tokenyard
