/// A TCP port of this host that nobody listens on.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace tokenyard {

inline uint16_t free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  const bool bound = bind(probe, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
                     getsockname(probe, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  close(probe);
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace tokenyard
