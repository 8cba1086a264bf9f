/// What a rank tells the others of itself, so that they can open channels to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/interfaces/channel.hpp"

namespace tokenyard::collectives {

struct ChannelEndpoint {
  std::string host;     ///< ranks with equal ones share memory
  std::string mailbox;  ///< name of its Unix socket
  std::string address;  ///< of its TCP listener, as a number
  uint16_t port = 0;
};

Contact encode(const ChannelEndpoint& endpoint);
/// Nothing if it is none.
std::optional<ChannelEndpoint> decode_contact(const Contact& contact);

/// Equal where memory and Unix sockets can be shared: same boot of the same machine, same network
/// namespace, same user. Two containers are two hosts.
std::string default_host();

}  // namespace tokenyard::collectives
