#include "collectives/transports/datagram_mailbox.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/os_failure.hpp"
#include "collectives/transports/connect_request.hpp"
#include "net/fork_guard.hpp"
#include "net/key.hpp"

namespace tokenyard::collectives {

namespace {

constexpr size_t kDatagramBytesMax = kConnectRequestBytes + kConnectRequestWordsMax;

[[noreturn]] void mailbox_failed(const char* call) {
  const int code = errno;
  os_failed(fmt::format("{} (a Unix datagram socket)", call), code);
}

/// Takes every attached descriptor, so that none leaks, and keeps one.
void open_enclosures(msghdr& message, MailboxMessage& datagram) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_RIGHTS) {
      const size_t descriptors = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t index = 0; index < descriptors; ++index) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(part) + index * sizeof(int), sizeof descriptor);
        datagram.enclosed = FileDescriptor(descriptor);
      }
    } else if (part->cmsg_type == SCM_CREDENTIALS) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(part), sizeof who);
      datagram.own_user = who.uid == geteuid();
    }
  }
}

}  // namespace

DatagramMailbox::DatagramMailbox()
    : name_(fmt::format("tokenyard-wire-{}-{:016x}", getpid(), net::random_number())),
      socket_(net::open_socket(AF_UNIX, SOCK_DGRAM)) {
  if (!socket_) mailbox_failed("socket");
  const int yes = 1;
  if (setsockopt(socket_.native(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
    mailbox_failed("setsockopt(SO_PASSCRED)");
  }
  const net::AbstractAddress address(name_);
  if (bind(socket_.native(), address.native(), address.bytes()) != 0) mailbox_failed("bind");
}

Posted DatagramMailbox::post(const net::AbstractAddress& to, const std::vector<std::byte>& bytes,
                             const FileDescriptor& enclosed) {
  std::vector<std::byte> copy = bytes;
  iovec data{copy.data(), copy.size()};
  sockaddr_un address{};
  std::memcpy(&address, to.native(), to.bytes());
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = to.bytes();
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (enclosed) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = enclosed.native();
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  if (sendmsg(socket_.native(), &message, MSG_NOSIGNAL) >= 0) return Posted::yes;
  const bool passes = errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM ||
                      errno == ETOOMANYREFS;
  return passes ? Posted::not_now : Posted::never;
}

std::optional<MailboxMessage> DatagramMailbox::take() {
  MailboxMessage datagram;
  datagram.bytes.resize(kDatagramBytesMax);
  iovec data{datagram.bytes.data(), datagram.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t bytes = recvmsg(socket_.native(), &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return std::nullopt;
  datagram.bytes.resize(static_cast<size_t>(bytes));
  open_enclosures(message, datagram);
  datagram.enclosure_lost = (message.msg_flags & MSG_CTRUNC) != 0 && !datagram.enclosed;
  return datagram;
}

void DatagramMailbox::ring_doorbell(const net::AbstractAddress& to) const {
  (void)sendto(socket_.native(), nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL, to.native(), to.bytes());
}

}  // namespace tokenyard::collectives
