#include "gin/gin_options.hpp"

#include <fmt/format.h>

#include <string_view>

#include "base/environment.hpp"
#include "fabric/network/given_option.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::gin {

namespace {

constexpr std::string_view kName = "gin", kByRail = "gin:rail";
constexpr uint32_t kQueuesMax = 64;  ///< per peer: each is a context of GIN

GivenOption<std::string> transport_given(const NetworkOptions& options,
                                         const NetworkEnvironment& site) {
  if (!options.transport.empty()) return {options.transport, "network.transport"};
  return {site.transport, "TOKENYARD_NETWORK"};
}

}  // namespace

bool asks_for_gin(const NetworkOptions& options) {
  const std::string transport =
      transport_given(options, NetworkEnvironment::read()).value.value_or("");
  return transport.substr(0, transport.find(':')) == kName;
}

GinOptions gin_options_of(const NetworkOptions& options) {
  const NetworkEnvironment site = NetworkEnvironment::read();
  GinOptions chosen;
  const GivenOption<std::string> transport = transport_given(options, site);
  chosen.by_rail = transport.value == kByRail;
  if (transport.value && transport.value != kName && !chosen.by_rail)
    throw InvalidArgument(transport.name, fmt::format("\"{}\" or \"{}\"", kName, kByRail),
                          fmt::format("'{}'", *transport.value));
  const auto refuse = [&](const auto& option, const auto& variable, const char* name,
                          const char* why) {
    refuse_given(given_option(option, variable, name), why);
  };
  const char* const by_nccl = "NCCL chooses cards and interfaces: NCCL_IB_HCA, NCCL_SOCKET_IFNAME";
  const char* const by_variables = "NCCL has variables for it, such as NCCL_IB_GID_INDEX";
  refuse(options.interfaces, site.interfaces, "interfaces", by_nccl);
  refuse(options.ports, site.ports, "ports", by_nccl);
  refuse(options.connections, site.connections, "connections", "GIN has one per queue and peer");
  refuse(options.queue_depth, site.queue_depth, "queue_depth", "GIN's queues have their own");
  refuse(options.gpu_memory, site.gpu_memory, "gpu_memory", "all memory is the GPU's over GIN");
  refuse(options.gid_index, site.gid_index, "gid_index", by_variables);
  refuse(options.service_level, site.service_level, "service_level", by_variables);
  refuse(options.pkey, site.pkey, "pkey", by_variables);
  refuse(options.mtu, site.mtu, "mtu", by_variables);
  refuse(options.retry_count, site.retry_count, "retry_count", by_variables);
  refuse(options.retry_timeout, site.retry_timeout, "retry_timeout", by_variables);
  const auto traffic_class =
      given_option(options.traffic_class, site.traffic_class, "traffic_class");
  if (traffic_class.value) chosen.traffic_class = static_cast<int>(up_to(traffic_class, 0, 255));
  chosen.queues_per_peer = at_most(given_option(options.queues, site.queues, "queues"),
                                   chosen.queues_per_peer, kQueuesMax);
  chosen.timeout = given_timeout(options.timeout, site.timeout_s, chosen.timeout);
  return chosen;
}

std::string gin_options_text() {
  const GinOptions options = gin_options_of({});
  return fmt::format("NCCL connects {} (gin), of TOKENYARD_NETWORK; {} queues per peer",
                     options.by_rail ? "ranks of one place on their hosts" : "hosts",
                     options.queues_per_peer);
}

}  // namespace tokenyard::gin
