#include "fabric/proxy/network_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "fabric/network/given_option.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

std::vector<std::string> interfaces_of(const GivenOption<std::string>& given, uint32_t local_rank) {
  std::vector<std::string> names = interfaces_for(given, local_rank);
  if (names.size() > kPathsMax)
    throw InvalidArgument(given.name, "at most 6 interfaces", "'" + *given.value + "'");
  // Throws if there is no such interface, or it is of no use.
  for (const std::string& name : names) address_of_interface(name, given.name);
  return names;
}

std::pair<uint16_t, uint16_t> ports_of(const GivenOption<std::string>& given) {
  if (!given.value) return {0, 0};
  const std::string_view text = *given.value;
  const size_t dash = std::min(text.find('-'), text.size());
  const auto port = [](std::string_view digits) {
    uint16_t number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return read.ec == std::errc() && read.ptr == digits.data() + digits.size() ? number
                                                                               : uint16_t{0};
  };
  const uint16_t first = port(text.substr(0, dash));
  const uint16_t last = dash == text.size() ? first : port(text.substr(dash + 1));
  if (first == 0 || last < first)
    throw InvalidArgument(given.name, "a port or two, as 20000-20100", "'" + *given.value + "'");
  return {first, last};
}

GivenOption<std::string> transport_given(const NetworkOptions& options,
                                         const NetworkEnvironment& site) {
  if (!options.transport.empty()) return {options.transport, "network.transport"};
  return {site.transport, "TOKENYARD_NETWORK"};
}

/// Returns the plug-in that a value names; nothing for TCP.
PluginOptions plugin_of(const GivenOption<std::string>& given) {
  const std::string value = given.value.value_or("tcp");
  const size_t slash = value.rfind('/');
  const size_t colon = value.find(':', slash == std::string::npos ? 0 : slash);
  const std::string library = value.substr(0, colon);
  PluginOptions plugin;
  if (colon != std::string::npos) plugin.provider = value.substr(colon + 1);
  if (value == "tcp") return plugin;
  if (library == "libfabric") {
    plugin.library = "libtokenyard_libfabric.so";
  } else if (slash != std::string::npos) {
    plugin.library = library;
  } else {
    throw InvalidArgument(given.name,
                          "\"tcp\", \"libfabric\", \"libfabric:PROVIDER\", \"ibgda\", "
                          "\"ibgda:DEVICE\" or \"gin\"",
                          "'" + value + "'");
  }
  return plugin;
}

/// Refuses options that a plug-in would not obey.
void require_no_tcp_options(const NetworkOptions& options, const NetworkEnvironment& site) {
  const std::string why = "only TCP has it";
  refuse_given(given_option(options.ports, site.ports, "ports"), why);
  refuse_given(given_option(options.connections, site.connections, "connections"), why);
  refuse_given(given_option(options.traffic_class, site.traffic_class, "traffic_class"),
               "only TCP and ibgda have it");
}

/// Refuses an option that TCP would not obey.
void require_no_plugin_options(const NetworkOptions& options, const NetworkEnvironment& site) {
  refuse_given(given_option(options.gpu_memory, site.gpu_memory, "gpu_memory"),
               "over TCP the processor receives, in pinned memory");
}

/// Refuses options that only cards obey.
void require_no_card_options(const NetworkOptions& options, const NetworkEnvironment& site) {
  const std::string why = "only cards (ibgda) have it";
  refuse_given(given_option(options.gid_index, site.gid_index, "gid_index"), why);
  refuse_given(given_option(options.service_level, site.service_level, "service_level"), why);
  refuse_given(given_option(options.pkey, site.pkey, "pkey"), why);
  refuse_given(given_option(options.mtu, site.mtu, "mtu"), why);
  refuse_given(given_option(options.retry_count, site.retry_count, "retry_count"), why);
  refuse_given(given_option(options.retry_timeout, site.retry_timeout, "retry_timeout"), why);
}

std::string interface_of(const GivenOption<std::string>& given, uint32_t local_rank) {
  const std::vector<std::string> names = interfaces_for(given, local_rank);
  if (names.size() > 1)
    throw InvalidArgument(given.name, "one interface, as over libfabric", "'" + *given.value + "'");
  return names.empty() ? "" : names.front();
}

}  // namespace

ProxyNetworkOptions proxy_options_of(const NetworkOptions& options, uint32_t local_rank) {
  const NetworkEnvironment site = NetworkEnvironment::read();
  ProxyNetworkOptions chosen;
  chosen.plugin = plugin_of(transport_given(options, site));
  const auto interfaces = given_option(options.interfaces, site.interfaces, "interfaces");
  if (chosen.plugin.library.empty()) {
    chosen.tcp.interfaces = interfaces_of(interfaces, local_rank);
    require_no_plugin_options(options, site);
  } else {
    chosen.plugin.interface = interface_of(interfaces, local_rank);
    require_no_tcp_options(options, site);
    chosen.gpu_memory = given_option(options.gpu_memory, site.gpu_memory, "gpu_memory").value;
  }
  require_no_card_options(options, site);
  const auto traffic_class =
      given_option(options.traffic_class, site.traffic_class, "traffic_class");
  if (traffic_class.value)
    chosen.tcp.traffic_class = static_cast<uint8_t>(up_to(traffic_class, 0, 255));
  std::tie(chosen.tcp.port_first, chosen.tcp.port_last) =
      ports_of(given_option(options.ports, site.ports, "ports"));
  chosen.tcp.paths =
      at_most(given_option(options.connections, site.connections, "connections"), 0, kPathsMax);
  chosen.queues_per_peer = at_most(given_option(options.queues, site.queues, "queues"),
                                   chosen.queues_per_peer, kQueuesPerPeerMax);
  chosen.proxy.depth = at_most(given_option(options.queue_depth, site.queue_depth, "queue_depth"),
                               chosen.proxy.depth, QueuePair::kSlots);
  chosen.proxy.grace = given_timeout(options.timeout, site.timeout_s, chosen.proxy.grace);
  return chosen;
}

std::string network_text() {
  const ProxyNetworkOptions options = proxy_options_of({});
  if (!options.plugin.library.empty()) {
    return fmt::format(
        "a thread per rank, over {}{}{}, of TOKENYARD_NETWORK; {} queues of {} requests per peer",
        options.plugin.library, options.plugin.provider.empty() ? "" : ", provider ",
        options.plugin.provider, options.queues_per_peer, options.proxy.depth);
  }
  std::string by = "the interface of the route to the job";
  if (!options.tcp.interfaces.empty()) {
    by = fmt::format("{} of TOKENYARD_NETWORK_INTERFACES", fmt::join(options.tcp.interfaces, ", "));
  }
  std::string ports = "any port";
  if (options.tcp.port_first != 0)
    ports = fmt::format("ports {} to {}", options.tcp.port_first, options.tcp.port_last);
  return fmt::format(
      "a thread per rank, over TCP, by {}, {}; {} queues of {} requests per peer; up are {}", by,
      ports, options.queues_per_peer, options.proxy.depth, interfaces_text());
}

}  // namespace tokenyard
