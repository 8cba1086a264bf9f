/// How other ranks can open channels to a rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/interfaces/channel.hpp"

namespace tokenyard::collectives {

struct ChannelEndpoint {
  std::string host;     ///< ranks with equal hosts share memory
  std::string mailbox;  ///< name of its Unix socket
  std::string address;  ///< of its TCP listener, numeric
  uint16_t port = 0;
};

Contact encode(const ChannelEndpoint& endpoint);
/// Returns nothing if the bytes are not an encoded endpoint of this version.
std::optional<ChannelEndpoint> decode_contact(const Contact& contact);

/// Returns a name that is equal if memory and Unix sockets can be shared: same boot of the same
/// machine, same network namespace, same user. Two containers count as two hosts.
std::string default_host();

}  // namespace tokenyard::collectives
