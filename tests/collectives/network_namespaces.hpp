/// Hosts on one machine: network namespaces, joined by a bridge in one of their own. Cables can be
/// cut, also in one direction.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace tokenyard::collectives {

class NetworkNamespaces {
 public:
  /// Throws if the kernel, or this process's rights, do not allow it.
  explicit NetworkNamespaces(uint32_t hosts) : hosts_(hosts) {
    try {
      ip(fmt::format("netns add {}", hub()));
      in(hub(), "link add bridge type bridge");
      in(hub(), "link set bridge up");
      for (uint32_t host = 0; host < hosts; ++host) connect(host);
    } catch (...) {
      remove();
      throw;
    }
  }
  ~NetworkNamespaces() { remove(); }
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  static std::string address(uint32_t host) { return fmt::format("10.77.0.{}", host + 1); }

  /// Moves the calling process, which must have one thread, to that host.
  void enter(uint32_t host) const {
    const FileDescriptor place(
        open(("/var/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC));
    if (!place || setns(place.native(), CLONE_NEWNET) != 0) throw std::runtime_error("setns");
  }

  void cut(uint32_t host) { in(hub(), fmt::format("link set port{} down", host)); }
  void recover(uint32_t host) { in(hub(), fmt::format("link set port{} up", host)); }
  /// Sends packets from `from` to `to` to a network card that does not exist.
  void cut_one_way(uint32_t from, uint32_t to) {
    in(name(from),
       fmt::format("neigh replace {} lladdr 02:00:00:00:00:77 dev eth nud permanent", address(to)));
  }
  void recover_one_way(uint32_t from, uint32_t to) {
    in(name(from), fmt::format("neigh del {} dev eth", address(to)));
  }

 private:
  static void ip(const std::string& arguments) {
    const std::string command = "ip " + arguments + " 2>/dev/null";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("ip " + arguments);
  }
  static void in(const std::string& where, const std::string& arguments) {
    ip(fmt::format("-n {} {}", where, arguments));
  }

  void connect(uint32_t host) {
    ip(fmt::format("netns add {}", name(host)));
    in(hub(), fmt::format("link add port{0} type veth peer name eth netns {1}", host, name(host)));
    in(hub(), fmt::format("link set port{} master bridge up", host));
    in(name(host), fmt::format("addr add {}/24 dev eth", address(host)));
    in(name(host), "link set eth up");
    in(name(host), "link set lo up");
  }
  void remove() {
    for (uint32_t host = 0; host < hosts_; ++host) quietly_delete(name(host));
    quietly_delete(hub());
  }
  static void quietly_delete(const std::string& which) {
    try {
      ip("netns del " + which);
    } catch (const std::runtime_error&) {
      // It was never made.
    }
  }

  std::string hub() const { return fmt::format("tokenyard-{}-hub", owner_); }
  std::string name(uint32_t host) const { return fmt::format("tokenyard-{}-{}", owner_, host); }

  const uint32_t hosts_;
  const pid_t owner_ = getpid();
};

}  // namespace tokenyard::collectives
