#include "net/address.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <asio.hpp>
#include <charconv>
#include <memory>

namespace tokenyard::net {

namespace {

/// An address in a documentation network, so only the default route can lead there.
constexpr const char* kElsewhere = "192.0.2.1";
constexpr const char* kLoopback = "127.0.0.1";

/// Returns the address of an interface that is up; for closed networks.
std::string interface_address() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return kLoopback;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, freeifaddrs);
  return first_address(list.get());
}

}  // namespace

std::string first_address(const ifaddrs* interfaces) {
  for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
    const bool usable = each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET &&
                        (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    const auto* const native = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    return asio::ip::address_v4(ntohl(native->sin_addr.s_addr)).to_string();
  }
  return kLoopback;
}

std::optional<Address> parse_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string_view digits = text.substr(colon + 1);
  const char* const end = digits.data() + digits.size();
  uint16_t port = 0;
  const auto read = std::from_chars(digits.data(), end, port);
  if (read.ec != std::errc() || read.ptr != end || port == 0 || host.empty()) return std::nullopt;
  return Address{std::string(host), port};
}

std::string own_address(const std::optional<Address>& target) try {
  asio::io_context io;
  asio::error_code error;
  asio::ip::udp::resolver resolver(io);
  const auto places = resolver.resolve(target ? target->host : kElsewhere,
                                       target ? std::to_string(target->port) : "9", error);
  for (const auto& place : places) {
    // Connecting a UDP socket sends nothing; it only selects the route.
    asio::ip::udp::socket probe(io);
    probe.open(place.endpoint().protocol(), error);
    if (!error) probe.connect(place.endpoint(), error);
    if (error) continue;
    const auto local = probe.local_endpoint(error);
    if (!error) return local.address().to_string();
  }
  return interface_address();
} catch (const std::system_error&) {
  return kLoopback;  // out of descriptors: the next call that needs one reports it
}

}  // namespace tokenyard::net
