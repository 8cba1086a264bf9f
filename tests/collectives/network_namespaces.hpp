/// Hosts on one machine: network namespaces, whose n-th cards are joined by the n-th bridge in a
/// namespace of their own. Cables can be cut, also in one direction, and cards taken down.
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
  explicit NetworkNamespaces(uint32_t hosts, uint32_t cards = 1) : hosts_(hosts) {
    try {
      ip(fmt::format("netns add {}", hub()));
      for (uint32_t host = 0; host < hosts; ++host) add(host);
      for (uint32_t card = 0; card < cards; ++card) {
        in(hub(), fmt::format("link add bridge{} type bridge", card));
        in(hub(), fmt::format("link set bridge{} up", card));
        for (uint32_t host = 0; host < hosts; ++host) connect(host, card);
      }
    } catch (...) {
      remove();
      throw;
    }
  }
  ~NetworkNamespaces() { remove(); }
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  static std::string address(uint32_t host, uint32_t card = 0) {
    return fmt::format("10.77.{}.{}", card, host + 1);
  }
  static std::string card_name(uint32_t card) {
    return card == 0 ? "eth" : fmt::format("eth{}", card);
  }

  /// Moves the calling process, which must have one thread, to that host.
  void enter(uint32_t host) const {
    const FileDescriptor place(
        open(("/var/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC));
    if (!place || setns(place.native(), CLONE_NEWNET) != 0) throw std::runtime_error("setns");
  }

  void cut(uint32_t host, uint32_t card = 0) {
    in(hub(), fmt::format("link set {} down", port(host, card)));
  }
  void recover(uint32_t host, uint32_t card = 0) {
    in(hub(), fmt::format("link set {} up", port(host, card)));
  }
  /// Drops all packets of a host, by a firewall: its cards stay up. Throws if there is no nft.
  void partition(uint32_t host) {
    std::string rules = "add table inet cut";
    for (const char* hook : {"input", "output"})
      rules += fmt::format(
          "; add chain inet cut {0} {{ type filter hook {0} priority 0; policy drop; }}", hook);
    ip(fmt::format("netns exec {} nft '{}'", name(host), rules));
  }
  /// Drops all TCP packets that arrive at a card. Throws if there is no nft.
  void close_ports(uint32_t host, uint32_t card) {
    ip(
        fmt::format("netns exec {} nft 'add table inet closed; add chain inet closed input {{ type "
                    "filter hook input priority 0; }}; add rule inet closed input iifname {} meta "
                    "l4proto tcp drop'",
                    name(host), card_name(card)));
  }
  /// Lets a card send no more than so many megabits per second. Throws if this kernel has no such
  /// queue.
  void slow_down(uint32_t host, uint32_t card, uint32_t megabits) {
    ip(fmt::format(
        "netns exec {} tc qdisc add dev {} root tbf rate {}mbit burst 128kb latency 100ms",
        name(host), card_name(card), megabits));
  }
  void take_down(uint32_t host, uint32_t card) {
    in(name(host), fmt::format("link set {} down", card_name(card)));
  }
  void take_up(uint32_t host, uint32_t card) {
    in(name(host), fmt::format("link set {} up", card_name(card)));
  }
  /// Sends packets from `from` to `to` to a network card that does not exist.
  void cut_one_way(uint32_t from, uint32_t to, uint32_t card = 0) {
    in(name(from), fmt::format("neigh replace {} lladdr 02:00:00:00:00:77 dev {} nud permanent",
                               address(to, card), card_name(card)));
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

  void add(uint32_t host) {
    ip(fmt::format("netns add {}", name(host)));
    in(name(host), "link set lo up");
  }
  void connect(uint32_t host, uint32_t card) {
    const std::string port = this->port(host, card), end = card_name(card);
    in(hub(), fmt::format("link add {} type veth peer name {} netns {}", port, end, name(host)));
    in(hub(), fmt::format("link set {} master bridge{} up", port, card));
    in(name(host), fmt::format("addr add {}/24 dev {}", address(host, card), end));
    in(name(host), fmt::format("link set {} up", end));
  }
  static std::string port(uint32_t host, uint32_t card) {
    return fmt::format("port{}-{}", host, card);
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
