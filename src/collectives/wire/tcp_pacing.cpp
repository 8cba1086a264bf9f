#include "collectives/wire/tcp_pacing.hpp"

#include <linux/tcp.h>  // glibc's own has no tcpi_min_rtt
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tokenyard::collectives {

namespace {

/// There and back: within a building, or two that are close.
constexpr uint32_t kShortWayUs = 1000;

bool paces(const FileDescriptor& socket) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  const int failed = getsockopt(socket.native(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes);
  return failed == 0 && std::string_view(name, bytes).starts_with("bbr");
}

bool is_short(const FileDescriptor& socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const int failed = getsockopt(socket.native(), IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return failed == 0 && bytes > offsetof(tcp_info, tcpi_min_rtt) && info.tcpi_min_rtt < kShortWayUs;
}

}  // namespace

void do_not_pace_a_short_way(const FileDescriptor& socket) {
  if (!paces(socket) || !is_short(socket)) return;
  // Every system has it and lets everybody choose it. Over so short a way cubic does what it does.
  constexpr std::string_view reno = "reno";
  (void)setsockopt(socket.native(), IPPROTO_TCP, TCP_CONGESTION, reno.data(), reno.size());
}

}  // namespace tokenyard::collectives
