#include "net/tcp_socket.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/os_failure.hpp"
#include "net/fork_guard.hpp"
#include "net/tcp_pacing.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::net {

namespace {

constexpr int kListenQueue = 1024;

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList resolve(const std::string& address, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
  if (error != 0) throw OsError("getaddrinfo of " + address, error, gai_strerror(error));
  return {found, freeaddrinfo};
}

FileDescriptor make_socket(int family) {
  FileDescriptor made = open_socket(family, SOCK_STREAM);
  if (!made) os_failed("socket");
  begin_unpaced(made);
  return made;
}

void set(const FileDescriptor& socket, int level, int option, int value) {
  // A system without one of these options is slower, nothing worse.
  (void)setsockopt(socket.native(), level, option, &value, sizeof value);
}

Moved moved(ssize_t result) {
  if (result > 0) return {.bytes = static_cast<size_t>(result)};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
  return {.error = errno, .over = true};
}

}  // namespace

Listening listen_at(const std::string& address, uint16_t port) {
  const AddressList found = resolve(address, port, AI_PASSIVE);
  Listening made{.socket = make_socket(found->ai_family), .address = {}};
  // A port that was chosen may have connections of a process that has ended.
  if (port != 0) set(made.socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(made.socket.native(), found->ai_addr, found->ai_addrlen) != 0) {
    os_failed("bind to " + address);
  }
  if (listen(made.socket.native(), kListenQueue) != 0) os_failed("listen at " + address);
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  if (getsockname(made.socket.native(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
    os_failed("getsockname");
  }
  char host[NI_MAXHOST] = {};
  char service[NI_MAXSERV] = {};
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&bound), bytes, host, sizeof host,
                                service, sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) throw OsError("getnameinfo", error, gai_strerror(error));
  made.address = host;
  made.port = static_cast<uint16_t>(std::stoul(service));
  return made;
}

FileDescriptor connect_to(const std::string& address, uint16_t port, const Origin& from) {
  const AddressList found = resolve(address, port, AI_NUMERICHOST);
  FileDescriptor made = make_socket(found->ai_family);
  if (!from.address.empty()) {
    const AddressList own = resolve(from.address, 0, AI_NUMERICHOST);
    if (own->ai_family == found->ai_family) {
      if (bind(made.native(), own->ai_addr, own->ai_addrlen) != 0) os_failed("bind");
      // Linux before 5.7 wants rights for it; then the routes decide.
      if (!from.interface.empty())
        (void)setsockopt(made.native(), SOL_SOCKET, SO_BINDTODEVICE, from.interface.c_str(),
                         static_cast<socklen_t>(from.interface.size()));
    }
  }
  if (connect(made.native(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    os_failed(fmt::format("connect to {}:{}", address, port));
  }
  return made;
}

void tune(const FileDescriptor& socket, int buffer_bytes) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);  // ends idle connections to dead hosts
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (buffer_bytes > 0) {
    set(socket, SOL_SOCKET, SO_SNDBUF, buffer_bytes);
    set(socket, SOL_SOCKET, SO_RCVBUF, buffer_bytes);
  }
}

void set_traffic_class(const FileDescriptor& socket, uint8_t traffic_class) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (getsockname(socket.native(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0)
    os_failed("getsockname");
  // Packets of IPv4 addresses may leave a socket of IPv6.
  const int value = traffic_class;
  const auto set_on = [&](int level, int option) {
    return setsockopt(socket.native(), level, option, &value, sizeof value) == 0;
  };
  const bool ipv4 = set_on(IPPROTO_IP, IP_TOS);
  if (own.ss_family == AF_INET6 ? !set_on(IPPROTO_IPV6, IPV6_TCLASS) : !ipv4)
    os_failed("setsockopt of a traffic class");
}

Moved send_now(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  return moved(::send(socket.native(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

Moved receive_now(const FileDescriptor& socket, std::span<std::byte> into) {
  const ssize_t result = ::recv(socket.native(), into.data(), into.size(), MSG_DONTWAIT);
  if (result == 0 && !into.empty()) return {.over = true};
  return moved(result);
}

}  // namespace tokenyard::net
