/// A probe for a listener at an address.
#pragma once

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

namespace tokenyard::torch_backend {

/// Returns whether one of the host's addresses accepts a connection in time; closes it at once.
inline bool reachable(const std::string& host, uint16_t port, std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    const int socket_type = at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC;
    const int descriptor = socket(at->ai_family, socket_type, at->ai_protocol);
    if (descriptor < 0) continue;
    bool connected = connect(descriptor, at->ai_addr, at->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
      int error = ETIMEDOUT;
      socklen_t size = sizeof error;
      if (left.count() > 0 && poll(&writable, 1, static_cast<int>(left.count())) == 1)
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
      connected = error == 0;
    }
    close(descriptor);
    if (connected) return true;
  }
  return false;
}

}  // namespace tokenyard::torch_backend
