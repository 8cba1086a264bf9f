#include "fabric/fd_exchange.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "base/os_failure.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "net/abstract_address.hpp"
#include "net/fork_guard.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

/// Published by each rank before descriptors travel.
struct Address {
  char name[48];  ///< abstract name of its socket, without the leading zero
  uint64_t secret;
  int32_t process;
};

/// Travels beside a descriptor. The copy of the receiver's secret proves that the sender belongs to
/// this world.
struct Label {
  uint64_t secret;
  uint32_t rank;
};

FileDescriptor make_socket() {
  FileDescriptor made = net::open_socket(AF_UNIX, SOCK_SEQPACKET);
  if (!made) os_failed("socket");
  return made;
}

net::AbstractAddress native_of(const Address& address) {
  return net::AbstractAddress({address.name, strnlen(address.name, sizeof address.name)});
}

FileDescriptor listen_at(const Address& address, uint32_t peers) {
  FileDescriptor listener = make_socket();
  const net::AbstractAddress native = native_of(address);
  if (bind(listener.native(), native.native(), native.bytes()) != 0) os_failed("bind");
  if (listen(listener.native(), static_cast<int>(peers) + 16) != 0) os_failed("listen");
  return listener;
}

/// Returns true once the descriptor is sent; false if the peer's queue is full or the peer is gone.
bool send_to(const Address& peer, const Label& label, int descriptor) {
  const FileDescriptor socket = make_socket();
  const net::AbstractAddress native = native_of(peer);
  if (connect(socket.native(), native.native(), native.bytes()) != 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    if (errno == ECONNREFUSED) return false;  // Gone; the wait for its own descriptor reports it.
    os_failed("connect");
  }
  Label copy = label;
  iovec data{&copy, sizeof copy};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  if (sendmsg(socket.native(), &message, MSG_NOSIGNAL) >= 0) return true;
  if (errno == EAGAIN || errno == EINTR || errno == EPIPE || errno == ECONNRESET) return false;
  os_failed("sendmsg with SCM_RIGHTS");
}

struct Parcel {
  Label label;
  FileDescriptor descriptor;  ///< empty if this process may open no more of them
};

/// Returns the connection's parcel; nothing if it has not arrived yet or is malformed.
std::optional<Parcel> receive_from(const FileDescriptor& connection) {
  Parcel parcel{};
  iovec data{&parcel.label, sizeof parcel.label};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t bytes = recvmsg(connection.native(), &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return std::nullopt;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(part), sizeof descriptor);
    parcel.descriptor = FileDescriptor(descriptor);
  }
  const bool whole = parcel.descriptor || (message.msg_flags & MSG_CTRUNC) != 0;
  if (bytes != sizeof parcel.label || !whole) return std::nullopt;
  return parcel;
}

/// Returns whether the other end is a process of this user and, where its pid is known, of `rank`.
bool trusted(const FileDescriptor& connection, const std::vector<Address>& peers, uint32_t rank) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (getsockopt(connection.native(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return false;
  // A process of a pid namespace that is not visible here has no pid for us, which reads as 0.
  return who.uid == geteuid() && (who.pid == 0 || who.pid == peers[rank].process);
}

}  // namespace

std::vector<FileDescriptor> exchange_fds(Bootstrap& bootstrap, int mine, const std::string& what,
                                         TimePoint until, const std::vector<bool>& near) {
  const uint32_t ranks = bootstrap.size();
  const auto is_near = [&](uint32_t rank) { return near.empty() || near[rank]; };
  Address me{.name = {}, .secret = net::random_number(), .process = getpid()};
  fmt::format_to_n(me.name, sizeof me.name - 1, "tokenyard-{}-{:016x}", me.process,
                   net::random_number());
  FileDescriptor listener;
  std::vector<FileDescriptor> received(ranks);
  const std::string addresses = "addresses for " + what;
  const auto prepare = [&] {
    listener = listen_at(me, ranks);
    received[bootstrap.rank()] = FileDescriptor(fcntl(mine, F_DUPFD_CLOEXEC, 0));
    if (!received[bootstrap.rank()]) os_failed("fcntl(F_DUPFD_CLOEXEC)");
    const auto bytes = std::as_bytes(std::span(&me, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto peers = values_of<Address>(
      bootstrap, collective_step(bootstrap, addresses, until, prepare), addresses);

  std::vector<bool> sent(ranks, false);
  std::vector<FileDescriptor> connections;
  bool out_of_descriptors = false;
  const auto exchange = [&] {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank == bootstrap.rank() || sent[rank] || !bootstrap.present(rank) || !is_near(rank))
        continue;
      sent[rank] = send_to(peers[rank], Label{peers[rank].secret, bootstrap.rank()}, mine);
    }
    for (;;) {
      FileDescriptor connection = net::accept_socket(listener.native());
      out_of_descriptors = !connection && (errno == EMFILE || errno == ENFILE);
      if (!connection) break;
      connections.push_back(std::move(connection));
    }
    // A connection carries one parcel and closes after it, so that descriptors do not accumulate.
    std::erase_if(connections, [&](const FileDescriptor& connection) {
      auto parcel = receive_from(connection);
      if (!parcel) return false;
      if (parcel->label.secret != me.secret || parcel->label.rank >= ranks) return true;
      if (!bootstrap.present(parcel->label.rank) || !is_near(parcel->label.rank)) return true;
      if (!trusted(connection, peers, parcel->label.rank)) return true;
      if (!parcel->descriptor) os_failed("recvmsg of a descriptor", EMFILE);
      received[parcel->label.rank] = std::move(parcel->descriptor);
      return true;
    });
  };
  try {
    bootstrap.await_each(what, until, [&](uint32_t rank) {
      exchange();
      return !is_near(rank) || (sent[rank] && received[rank]);
    });
  } catch (const PeerTimeout&) {
    // We waited in case other threads closed some. None did, and the peer is not to blame.
    if (out_of_descriptors) os_failed("accept4", EMFILE);
    throw;
  }
  return received;
}

}  // namespace tokenyard
