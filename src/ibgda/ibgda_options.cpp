#include "ibgda/ibgda_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>

#include "base/environment.hpp"
#include "device/mlx5_queue.hpp"
#include "fabric/network/given_option.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::ibgda {

namespace {

constexpr std::string_view kName = "ibgda";
constexpr uint32_t kQueuesMax = 1024;  ///< per peer

std::string transport_of(const NetworkOptions& options, const NetworkEnvironment& site) {
  return options.transport.empty() ? site.transport.value_or("") : options.transport;
}

/// Reads "DEVICE" or "DEVICE:PORT".
DeviceRequest request_of(const std::string& text, const std::string& from) {
  DeviceRequest request;
  const size_t colon = text.find(':');
  request.device = text.substr(0, colon);
  if (colon == std::string::npos) return request;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, request.port);
  if (error != std::errc() || stopped != end || request.port == 0)
    throw InvalidArgument(from, "\"ibgda:DEVICE\" or \"ibgda:DEVICE:PORT\"", "'" + text + "'");
  return request;
}

uint8_t below(const std::optional<uint32_t>& value, const char* variable, uint32_t most,
              uint8_t otherwise) {
  if (value && *value > most)
    throw InvalidArgument(variable, fmt::format("0 to {}", most), fmt::format("{}", *value));
  return static_cast<uint8_t>(value.value_or(otherwise));
}

std::optional<uint16_t> pkey_of(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  std::string_view digits = *text;
  if (digits.starts_with("0x")) digits.remove_prefix(2);
  uint16_t key = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, key, 16);
  if (error != std::errc() || stopped != end)
    throw InvalidArgument("TOKENYARD_NETWORK_PKEY", "four hexadecimal digits, as 0x8001",
                          "'" + *text + "'");
  return key;
}

uint8_t mtu_of(const std::optional<uint32_t>& bytes) {
  if (!bytes) return 0;
  for (uint8_t mtu = 1; mtu <= 5; ++mtu)
    if (*bytes == 128u << mtu) return mtu;
  throw InvalidArgument("TOKENYARD_NETWORK_MTU", "256, 512, 1024, 2048 or 4096",
                        fmt::format("{}", *bytes));
}

void require_none_of_tcp(const NetworkOptions& options) {
  const auto refuse = [](const char* option, const std::string& seen) {
    throw InvalidArgument(fmt::format("network.{}", option),
                          "nothing, as ibgda:DEVICE names a card", seen);
  };
  if (!options.ports.empty()) refuse("ports", options.ports);
  if (!options.interfaces.empty()) refuse("interfaces", options.interfaces);
  if (options.connections != 0) refuse("connections", fmt::format("{}", options.connections));
}

}  // namespace

bool asks_for_ibgda(const NetworkOptions& options) {
  const std::string transport = transport_of(options, NetworkEnvironment::read());
  return transport == kName || transport.starts_with(std::string(kName) + ":");
}

IbgdaOptions ibgda_options_of(const NetworkOptions& options) {
  const NetworkEnvironment site = NetworkEnvironment::read();
  const std::string transport = transport_of(options, site);
  IbgdaOptions chosen;
  if (transport.size() > kName.size()) {
    chosen.request =
        request_of(transport.substr(kName.size() + 1),
                   options.transport.empty() ? "TOKENYARD_NETWORK" : "network.transport");
  }
  require_none_of_tcp(options);
  chosen.request.gid_index = site.gid_index;
  if (site.gid_index) (void)below(site.gid_index, "TOKENYARD_NETWORK_GID_INDEX", 255, 0);
  chosen.traffic_class = below(site.traffic_class, "TOKENYARD_NETWORK_TRAFFIC_CLASS", 255, 0);
  // On Ethernet it is the priority, of three bits; the network checks that.
  chosen.service_level = below(site.service_level, "TOKENYARD_NETWORK_SERVICE_LEVEL", 15, 0);
  chosen.pkey = pkey_of(site.pkey);
  chosen.mtu = mtu_of(site.mtu);
  chosen.retries = below(site.retry_count, "TOKENYARD_NETWORK_RETRY_COUNT", 7, chosen.retries);
  if (site.retry_timeout) {
    chosen.ack_timeout = below(site.retry_timeout, "TOKENYARD_NETWORK_RETRY_TIMEOUT", 31, 0);
    if (*chosen.ack_timeout == 0)
      throw InvalidArgument("TOKENYARD_NETWORK_RETRY_TIMEOUT", "1 to 31, as 0 never ends", "0");
  }
  chosen.queues_per_peer = at_most(given_option(options.queues, site.queues, "queues"),
                                   chosen.queues_per_peer, kQueuesMax);
  const auto depth = given_option(options.queue_depth, site.queue_depth, "queue_depth");
  chosen.slots =
      std::bit_ceil(std::max(2u, at_most(depth, chosen.slots, Mlx5SendQueue::kSlotsMax)));
  if (options.timeout < std::chrono::nanoseconds::zero())
    throw InvalidArgument("network.timeout", "more than 0",
                          fmt::format("{} ns", options.timeout.count()));
  if (options.timeout != std::chrono::nanoseconds::zero()) {
    chosen.timeout = options.timeout;
  } else if (site.timeout_s) {
    chosen.timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(std::min(*site.timeout_s, 1e6)));
  }
  return chosen;
}

std::string options_text() {
  const IbgdaOptions options = ibgda_options_of({});
  std::string card = options.request.device.empty() ? "a card" : options.request.device;
  if (options.request.port != 0) card += fmt::format(" port {}", options.request.port);
  return fmt::format(
      "{} takes requests from kernels (ibgda), of TOKENYARD_NETWORK; {} queues of {} "
      "entries per peer",
      card, options.queues_per_peer, options.slots);
}

}  // namespace tokenyard::ibgda
