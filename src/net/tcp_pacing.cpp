#include "net/tcp_pacing.hpp"

#include <linux/tcp.h>  // glibc's own has no tcpi_min_rtt
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tokenyard::net {

namespace {

/// Every system has reno and allows it for all users. On such short paths cubic behaves alike.
constexpr std::string_view unpaced = "reno";

std::string choice_of(const FileDescriptor& socket) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  if (getsockopt(socket.native(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return "";
  return name;
}

void choose(const FileDescriptor& socket, std::string_view name) {
  (void)setsockopt(socket.native(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                   static_cast<socklen_t>(name.size()));
}

bool paces(std::string_view choice) {
  return choice.starts_with("bbr");
}

bool is_shorter(const FileDescriptor& socket, std::chrono::microseconds way) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const int failed = getsockopt(socket.native(), IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return failed == 0 && bytes > offsetof(tcp_info, tcpi_min_rtt) &&
         std::chrono::microseconds(info.tcpi_min_rtt) < way;
}

}  // namespace

void begin_unpaced(const FileDescriptor& socket) {
  if (paces(choice_of(socket))) choose(socket, unpaced);
}

void pace_a_long_way(const FileDescriptor& socket, std::chrono::microseconds shorter) {
  if (choice_of(socket) != unpaced || is_shorter(socket, shorter)) return;
  const FileDescriptor fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string system = fresh ? choice_of(fresh) : "";
  if (paces(system)) choose(socket, system);
}

}  // namespace tokenyard::net
