/// Addresses of processes, and the one where others reach this process, as well as can be found
/// out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tokenyard::net {

struct Address {
  std::string host;  ///< a number or a name
  uint16_t port = 0;
};

/// Reads "host:port"; an IPv6 address stands in brackets, since it has colons of its own. Returns
/// nothing for what is no host and port, and for port 0.
std::optional<Address> parse_address(std::string_view text);

/// Returns the address that packets to `target` leave from, or, without a target, those to the
/// world at large; without a route there, that of the first interface; without one, loopback.
/// Sends nothing.
std::string own_address(const std::optional<Address>& target);

}  // namespace tokenyard::net
