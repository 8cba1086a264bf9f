/// Reserves a TCP port of this host on which nothing listens.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <system_error>

namespace tokenyard {

/// Returns a port that stays reserved until this process ends: its socket is bound, never closed
/// and never listens, so Linux assigns the port to no other program, yet lets one that also sets
/// SO_REUSEADDR listen on it.
inline uint16_t free_port() {
  const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  const int reuse = 1;
  const bool bound = setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) == 0 &&
                     bind(held, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
                     getsockname(held, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  if (!bound) throw std::system_error(errno, std::generic_category(), "cannot reserve a free port");
  return ntohs(address.sin_port);
}

}  // namespace tokenyard
