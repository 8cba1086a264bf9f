/// Parses addresses, and finds the address at which other hosts are most likely to reach this one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

struct ifaddrs;

namespace tokenyard::net {

struct Address {
  std::string host;  ///< IP address or host name
  uint16_t port = 0;
};

/// Parses "host:port"; an IPv6 address is written in brackets. Returns nothing if the text has
/// another form or the port is 0.
std::optional<Address> parse_address(std::string_view text);

/// Returns the IPv4 address of the first of these interfaces that is up and no loopback, or the
/// loopback address if there is none.
std::string first_address(const ifaddrs* interfaces);

/// Returns the source address of packets to `target`, or of packets on the default route if there
/// is no target. Falls back to the first non-loopback interface, then to loopback. Sends nothing.
std::string own_address(const std::optional<Address>& target);

}  // namespace tokenyard::net
