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

/// Reads "CARD" or "CARD:PORT".
CardName card_of(const std::string& text, const std::string& from, const char* expected) {
  CardName card;
  const size_t colon = text.find(':');
  card.name = text.substr(0, colon);
  if (colon == std::string::npos) return card;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, card.port);
  if (error != std::errc() || stopped != end || card.port == 0)
    throw InvalidArgument(from, expected, "'" + text + "'");
  return card;
}

std::optional<uint16_t> pkey_of(const GivenOption<std::string>& given) {
  if (!given.value) return std::nullopt;
  std::string_view digits = *given.value;
  if (digits.starts_with("0x")) digits.remove_prefix(2);
  uint16_t key = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, key, 16);
  if (error != std::errc() || stopped != end)
    throw InvalidArgument(given.name, "four hexadecimal digits, as 0x8001",
                          "'" + *given.value + "'");
  return key;
}

uint8_t mtu_of(const GivenOption<uint32_t>& given) {
  if (!given.value) return 0;
  for (uint8_t mtu = 1; mtu <= 5; ++mtu)
    if (*given.value == 128u << mtu) return mtu;
  throw InvalidArgument(given.name, "256, 512, 1024, 2048 or 4096",
                        fmt::format("{}", *given.value));
}

/// Returns the cards that a rank may use: the one of the transport, or those of `interfaces`.
std::vector<CardName> allowed_of(const NetworkOptions& options, const NetworkEnvironment& site,
                                 uint32_t local_rank) {
  const std::string transport = transport_of(options, site);
  const auto interfaces = given_option(options.interfaces, site.interfaces, "interfaces");
  if (transport.size() > kName.size()) {
    refuse_given(interfaces, "ibgda:DEVICE names a card");
    return {card_of(transport.substr(kName.size() + 1),
                    options.transport.empty() ? "TOKENYARD_NETWORK" : "network.transport",
                    "\"ibgda:DEVICE\" or \"ibgda:DEVICE:PORT\"")};
  }
  std::vector<CardName> allowed;
  for (const std::string& name : interfaces_for(interfaces, local_rank))
    allowed.push_back(card_of(name, interfaces.name, "cards, as mlx5_0 or mlx5_0:1"));
  return allowed;
}

}  // namespace

bool asks_for_ibgda(const NetworkOptions& options) {
  const std::string transport = transport_of(options, NetworkEnvironment::read());
  return transport == kName || transport.starts_with(std::string(kName) + ":");
}

IbgdaOptions ibgda_options_of(const NetworkOptions& options, uint32_t local_rank) {
  const NetworkEnvironment site = NetworkEnvironment::read();
  IbgdaOptions chosen;
  chosen.request.allowed = allowed_of(options, site, local_rank);
  refuse_given(given_option(options.ports, site.ports, "ports"),
               "a card's port is part of its name, as mlx5_0:1");
  refuse_given(given_option(options.connections, site.connections, "connections"),
               "a card has a queue pair per queue");
  refuse_given(given_option(options.gpu_memory, site.gpu_memory, "gpu_memory"),
               "a card takes the GPU's memory wherever it can");
  const auto gid_index = given_option(options.gid_index, site.gid_index, "gid_index");
  if (gid_index.value) chosen.request.gid_index = up_to(gid_index, 0, 255);
  const auto small = [](const std::optional<uint32_t>& option,
                        const std::optional<uint32_t>& variable, const char* name, uint32_t most,
                        uint8_t otherwise) {
    return static_cast<uint8_t>(up_to(given_option(option, variable, name), otherwise, most));
  };
  chosen.traffic_class = small(options.traffic_class, site.traffic_class, "traffic_class", 255, 0);
  // On Ethernet it is the priority, of three bits; the card checks that.
  chosen.service_level = small(options.service_level, site.service_level, "service_level", 15, 0);
  chosen.retries = small(options.retry_count, site.retry_count, "retry_count", 7, chosen.retries);
  const auto pkey = given_option(options.pkey, site.pkey, "pkey");
  const auto mtu = given_option(options.mtu, site.mtu, "mtu");
  chosen.pkey = pkey_of(pkey);
  chosen.mtu = mtu_of(mtu);
  chosen.names = {.service_level =
                      given_option(options.service_level, site.service_level, "service_level").name,
                  .pkey = pkey.name,
                  .mtu = mtu.name};
  // 0 would never end.
  const auto retry_timeout =
      given_option(options.retry_timeout, site.retry_timeout, "retry_timeout");
  if (retry_timeout.value) chosen.ack_timeout = static_cast<uint8_t>(at_most(retry_timeout, 1, 31));
  chosen.queues_per_peer = at_most(given_option(options.queues, site.queues, "queues"),
                                   chosen.queues_per_peer, kQueuesMax);
  const auto depth = given_option(options.queue_depth, site.queue_depth, "queue_depth");
  chosen.slots =
      std::bit_ceil(std::max(2u, at_most(depth, chosen.slots, Mlx5SendQueue::kSlotsMax)));
  chosen.timeout = given_timeout(options.timeout, site.timeout_s, chosen.timeout);
  return chosen;
}

std::string options_text() {
  const IbgdaOptions options = ibgda_options_of({});
  std::string card = options.request.allowed.empty() ? "a card" : "";
  for (const CardName& each : options.request.allowed) {
    card += (card.empty() ? "" : " or ") + each.name;
    if (each.port != 0) card += fmt::format(" port {}", each.port);
  }
  return fmt::format(
      "{} takes requests from kernels (ibgda), of TOKENYARD_NETWORK; {} queues of {} "
      "entries per peer",
      card, options.queues_per_peer, options.slots);
}

}  // namespace tokenyard::ibgda
