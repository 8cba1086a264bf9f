/// Two processes as two hosts with a cable between them: each has a network namespace of its own,
/// and its end of a pair of virtual network cards. Made by the kernel's own interface, for machines
/// without the `ip` program. Either end can cut the cable.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/file_descriptor.hpp"

namespace tokenyard::testing {

/// One of rtnetlink's requests, put together attribute by attribute.
class LinkRequest {
 public:
  template <class Body>
  LinkRequest(uint16_t type, uint16_t flags, const Body& body) {
    header().nlmsg_type = type;
    header().nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
    header().nlmsg_len = NLMSG_LENGTH(0);
    append(&body, sizeof body);
  }
  void add(uint16_t type, const void* value, size_t bytes) {
    const rtattr attribute{static_cast<unsigned short>(RTA_LENGTH(bytes)), type};
    append(&attribute, sizeof attribute);
    append(value, bytes);
  }
  void add(uint16_t type, const std::string& text) { add(type, text.c_str(), text.size() + 1); }
  void add(uint16_t type, uint32_t number) { add(type, &number, sizeof number); }
  /// Begins an attribute that holds those until `end`, and `before` in front of them.
  size_t begin(uint16_t type, const void* before = nullptr, size_t bytes = 0) {
    const size_t at = header().nlmsg_len;
    add(type, before, bytes);
    return at;
  }
  void end(size_t at) {
    reinterpret_cast<rtattr*>(bytes_.data() + at)->rta_len =
        static_cast<unsigned short>(header().nlmsg_len - at);
  }
  /// Throws std::runtime_error, which says `what`, if the kernel refuses it.
  void send(const std::string& what) {
    const FileDescriptor socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    std::array<char, 1024> reply{};
    ssize_t got = -1;
    if (socket && ::send(socket.native(), bytes_.data(), header().nlmsg_len, 0) > 0)
      got = recv(socket.native(), reply.data(), reply.size(), 0);
    const auto& answer = *reinterpret_cast<const nlmsghdr*>(reply.data());
    const int error = got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr)))
                          ? errno
                          : -static_cast<const nlmsgerr*>(NLMSG_DATA(&answer))->error;
    if (error != 0) throw std::runtime_error(what + ": " + std::strerror(error));
  }

 private:
  nlmsghdr& header() { return *reinterpret_cast<nlmsghdr*>(bytes_.data()); }
  void append(const void* from, size_t bytes) {
    const size_t at = header().nlmsg_len, end = at + NLMSG_ALIGN(bytes);
    if (end > bytes_.size()) throw std::logic_error("a request of netlink is too long");
    if (bytes != 0) std::memcpy(bytes_.data() + at, from, bytes);
    header().nlmsg_len = static_cast<uint32_t>(end);
  }

  alignas(nlmsghdr) std::array<std::byte, 1024> bytes_{};
};

class Cable {
 public:
  /// Moves the calling process, which must have one thread, to the host of `end`, 0 or 1. Both ends
  /// call it, with the same `path` for a file that does not exist. Throws std::runtime_error if the
  /// kernel, or this process's rights, do not allow it, or the other end does not come.
  Cable(uint32_t end, const std::string& path) : end_(end) {
    if (unshare(CLONE_NEWNET) != 0)
      throw std::runtime_error(std::string("unshare: ") + std::strerror(errno));
    if (end == 1) {
      publish_pid(path);
      await("its end of the cable", [] { return if_nametoindex(name(1).c_str()) != 0; });
    } else {
      pid_t other = 0;
      await("the other host", [&] { return read_pid(path, other); });
      unlink(path.c_str());
      make(other);
    }
    set_up("lo", true);
    set_address();
    set_up(name(end_), true);
    // A connection to an end that is not there yet would be tried again after seconds.
    await("the other end of the cable", [&] { return (flags_of(name(end_)) & IFF_RUNNING) != 0; });
  }

  /// Returns whether the kernel and this process's rights allow network namespaces.
  static bool is_allowed() {
    const pid_t child = fork();
    if (child == 0) _exit(unshare(CLONE_NEWNET) == 0 ? 0 : 1);
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
  }
  static std::string address(uint32_t end) { return "10.78.0." + std::to_string(end + 1); }
  static std::string name(uint32_t end) { return "tokenyard" + std::to_string(end); }
  void cut() const { set_up(name(end_), false); }

 private:
  static void await(const std::string& what, const auto& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("waited for " + what);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  static void publish_pid(const std::string& path) {
    const std::string text = std::to_string(getpid()) + "\n", made = path + ".new";
    {
      const FileDescriptor file(open(made.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
      if (!file || write(file.native(), text.data(), text.size()) < 0)
        throw std::runtime_error("cannot write " + made);
    }
    if (rename(made.c_str(), path.c_str()) != 0) throw std::runtime_error("cannot make " + path);
  }
  static bool read_pid(const std::string& path, pid_t& pid) {
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 32> text{};
    if (!file || read(file.native(), text.data(), text.size() - 1) <= 0) return false;
    pid = static_cast<pid_t>(std::stol(text.data()));
    return true;
  }
  static void make(pid_t other) {
    LinkRequest request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, ifinfomsg{});
    request.add(IFLA_IFNAME, name(0));
    const size_t information = request.begin(IFLA_LINKINFO);
    request.add(IFLA_INFO_KIND, "veth");
    const size_t data = request.begin(IFLA_INFO_DATA);
    const ifinfomsg none{};
    const size_t peer = request.begin(VETH_INFO_PEER, &none, sizeof none);
    request.add(IFLA_IFNAME, name(1));
    request.add(IFLA_NET_NS_PID, static_cast<uint32_t>(other));
    request.end(peer);
    request.end(data);
    request.end(information);
    request.send("a cable between two hosts");
  }
  void set_address() const {
    ifaddrmsg of{};
    of.ifa_family = AF_INET;
    of.ifa_prefixlen = 24;
    of.ifa_index = if_nametoindex(name(end_).c_str());
    in_addr number{};
    inet_pton(AF_INET, address(end_).c_str(), &number);
    LinkRequest request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, of);
    request.add(IFA_LOCAL, &number, sizeof number);
    request.add(IFA_ADDRESS, &number, sizeof number);
    request.send("the address of a host");
  }
  static int flags_of(const std::string& card) {
    const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    card.copy(request.ifr_name, IFNAMSIZ - 1);
    return socket && ioctl(socket.native(), SIOCGIFFLAGS, &request) == 0 ? request.ifr_flags : 0;
  }
  static void set_up(const std::string& card, bool up) {
    const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    card.copy(request.ifr_name, IFNAMSIZ - 1);
    bool done = socket && ioctl(socket.native(), SIOCGIFFLAGS, &request) == 0;
    constexpr auto kUp = static_cast<short>(IFF_UP);
    request.ifr_flags = static_cast<short>(up ? request.ifr_flags | kUp : request.ifr_flags & ~kUp);
    done = done && ioctl(socket.native(), SIOCSIFFLAGS, &request) == 0;
    if (!done) throw std::runtime_error(card + ": " + std::strerror(errno));
  }

  const uint32_t end_;
};

}  // namespace tokenyard::testing
