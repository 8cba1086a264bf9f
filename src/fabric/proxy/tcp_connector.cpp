#include "fabric/proxy/tcp_connector.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "net/address.hpp"
#include "net/protocol_error.hpp"
#include "net/tcp_pacing.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr size_t kPendingMax = 64;
constexpr std::chrono::seconds kPendingTime{3};
constexpr std::chrono::seconds kDialTime{5};
constexpr std::chrono::milliseconds kDialRest{50};
/// A hello's slot holds rank and path.
constexpr uint32_t kSlotsPerRank = 8;
static_assert(kPathsMax <= kSlotsPerRank);

std::string chosen_address(const TcpOptions& options) {
  if (!options.address.empty()) return options.address;
  if (!options.interface.empty()) return address_of_interface(options.interface);
  return net::own_address(std::nullopt);
}

}  // namespace

std::string address_of_interface(const std::string& name) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw OsError("getifaddrs", errno, std::strerror(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, freeifaddrs);
  std::string names;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list.get(); each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0) continue;
      if (names.find(each->ifa_name) == std::string::npos)
        names += names.empty() ? each->ifa_name : std::string(", ") + each->ifa_name;
      if (name != each->ifa_name) continue;
      char text[NI_MAXHOST] = {};
      const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(each->ifa_addr, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
        return text;
    }
  }
  throw InvalidArgument("interface", "one that is up and has an address: " + names, name);
}

TcpConnector::TcpConnector(const TcpOptions& options, const Self& self)
    : options_(options), self_(self), key_(self.secret, "tokenyard network") {
  if (options.paths == 0 || options.paths > kPathsMax) {
    throw InvalidArgument("paths", fmt::format("1 to {}", kPathsMax),
                          fmt::format("{}", options.paths));
  }
  listening_ = net::listen_at(chosen_address(options));
  endpoint_ = {
      .address = listening_.address, .port = listening_.port, .incarnation = net::random_number()};
}

net::Introduction TcpConnector::introduction(uint32_t path, uint64_t sought) const {
  return {.purpose = net::Purpose::member,
          .job = 0,
          .self = {.slot = self_.rank * kSlotsPerRank + path, .incarnation = endpoint_.incarnation},
          .epoch = self_.epoch,
          .sought = sought};
}

void TcpConnector::begin(const std::map<uint32_t, TcpEndpoint>& peers) {
  for (const auto& [rank, endpoint] : peers) {
    Peer& peer = peers_[rank];
    peer.endpoint = endpoint;
    peer.paths.resize(options_.paths);
    peer.rests_until.resize(options_.paths);
    if (rank < self_.rank) peer.dialling.resize(options_.paths);
  }
}

bool TcpConnector::step(TimePoint now) {
  accept(now);
  advance_pending(now);
  bool all = true;
  for (auto& [rank, peer] : peers_) {
    for (uint32_t path = 0; path < options_.paths; ++path) {
      if (peer.paths[path]) continue;
      if (!peer.dialling.empty()) dial(rank, peer, path, now);
      all = all && static_cast<bool>(peer.paths[path]);
    }
  }
  return all;
}

void TcpConnector::dial(uint32_t rank, Peer& peer, uint32_t path, TimePoint now) {
  std::optional<Greeting>& greeting = peer.dialling[path];
  try {
    if (!greeting) {
      if (now < peer.rests_until[path]) return;
      greeting.emplace(
          Greeting{.socket = net::connect_to(peer.endpoint.address, peer.endpoint.port),
                   .handshake = net::Handshake(net::Handshake::Side::dialler, key_,
                                               introduction(path, peer.endpoint.incarnation)),
                   .since = now,
                   .output = {},
                   .input = {}});
      net::tune(greeting->socket, options_.socket_buffer_bytes);
    }
    const Outcome outcome = advance(*greeting, now);
    if (outcome == Outcome::waits && now - greeting->since < kDialTime) return;
    const net::Introduction& there = greeting->handshake.peer();
    if (outcome == Outcome::done && there.epoch == self_.epoch &&
        there.self.slot / kSlotsPerRank == rank &&
        there.self.incarnation == peer.endpoint.incarnation) {
      net::pace_a_long_way(greeting->socket);
      peer.paths[path] = std::move(greeting->socket);
    } else if (outcome == Outcome::done) {
      peer.why = "another process answers";
    } else {
      peer.why = fmt::format("{} port {}: {}", peer.endpoint.address, peer.endpoint.port,
                             outcome == Outcome::waits ? "no answer" : std::strerror(errno));
    }
  } catch (const net::ProtocolError& error) {
    peer.why = fmt::format("what answers there {}", error.what());
  } catch (const OsError& error) {
    peer.why = error.what();
  }
  greeting.reset();
  peer.rests_until[path] = now + kDialRest;
}

void TcpConnector::accept(TimePoint now) {
  for (;;) {
    FileDescriptor socket = net::accept_from(listening_.socket);
    if (!socket) return;
    net::tune(socket, options_.socket_buffer_bytes);
    if (pending_.size() == kPendingMax) pending_.pop_front();
    pending_.push_back(Greeting{
        .socket = std::move(socket),
        .handshake = net::Handshake(net::Handshake::Side::acceptor, key_, introduction(0, 0)),
        .since = now,
        .output = {},
        .input = {}});
  }
}

void TcpConnector::advance_pending(TimePoint now) {
  for (auto each = pending_.begin(); each != pending_.end();) {
    Greeting& pending = *each;
    Outcome outcome = Outcome::failed;
    try {
      outcome = advance(pending, now);
    } catch (const net::ProtocolError&) {
      // It may be told why; nothing else is said to strangers.
      (void)net::send_now(pending.socket, pending.handshake.take_output());
    }
    if (outcome == Outcome::done) adopt(pending);
    if (outcome == Outcome::waits && now - pending.since < kPendingTime) {
      ++each;
      continue;
    }
    each = pending_.erase(each);
  }
}

/// Knows the secret; is it one of the peers that dial this rank, for a path that it does not have?
void TcpConnector::adopt(Greeting& pending) {
  const net::Introduction& who = pending.handshake.peer();
  const uint32_t rank = who.self.slot / kSlotsPerRank, path = who.self.slot % kSlotsPerRank;
  const auto peer = peers_.find(rank);
  if (who.epoch != self_.epoch || who.sought != endpoint_.incarnation || peer == peers_.end() ||
      rank < self_.rank || path >= options_.paths ||
      who.self.incarnation != peer->second.endpoint.incarnation)
    return;
  net::pace_a_long_way(pending.socket);
  // A later one replaces an earlier one, whose dialler has given up on it.
  peer->second.paths[path] = std::move(pending.socket);
}

TcpConnector::Outcome TcpConnector::advance(Greeting& greeting, TimePoint) {
  for (;;) {
    const auto more = greeting.handshake.take_output();
    greeting.output.insert(greeting.output.end(), more.begin(), more.end());
    while (!greeting.output.empty()) {
      const net::Moved sent = net::send_now(greeting.socket, greeting.output);
      if (sent.over && sent.error != ENOTCONN) {
        errno = sent.error;
        return Outcome::failed;
      }
      if (sent.bytes == 0) return Outcome::waits;
      greeting.output.erase(greeting.output.begin(),
                            greeting.output.begin() + static_cast<ptrdiff_t>(sent.bytes));
    }
    if (greeting.handshake.done()) return Outcome::done;
    const size_t wanted = greeting.handshake.wanted();
    const size_t before = greeting.input.size();
    greeting.input.resize(wanted);
    const net::Moved got =
        net::receive_now(greeting.socket, std::span(greeting.input).subspan(before));
    greeting.input.resize(before + got.bytes);
    if (got.over) {
      errno = got.error != 0 ? got.error : ECONNRESET;
      return Outcome::failed;
    }
    if (greeting.input.size() < wanted) return Outcome::waits;
    greeting.handshake.receive(greeting.input);
    greeting.input.clear();
  }
}

std::optional<std::pair<uint32_t, std::string>> TcpConnector::missing() const {
  for (const auto& [rank, peer] : peers_)
    if (connected(rank) < options_.paths) return std::pair(rank, peer.why);
  return std::nullopt;
}

uint32_t TcpConnector::connected(uint32_t rank) const {
  return static_cast<uint32_t>(std::ranges::count_if(
      peers_.at(rank).paths, [](const FileDescriptor& path) { return static_cast<bool>(path); }));
}

std::vector<FileDescriptor> TcpConnector::take(uint32_t rank) {
  return std::move(peers_.at(rank).paths);
}

}  // namespace tokenyard
