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
#include "net/fork_guard.hpp"
#include "net/protocol_error.hpp"
#include "net/tcp_pacing.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr size_t kPendingMax = 64;
constexpr std::chrono::seconds kPendingTime{3};
constexpr std::chrono::seconds kDialTime{5};
constexpr std::chrono::seconds kRedialTime{2};
constexpr std::chrono::milliseconds kDialRest{50}, kDialRestMax{1000};
/// A hello's slot holds rank and path.
constexpr uint32_t kSlotsPerRank = 8;
static_assert(kPathsMax <= kSlotsPerRank);

/// Returns the names and addresses of interfaces that are up, IPv4 first.
std::vector<std::pair<std::string, std::string>> interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw OsError("getifaddrs", errno, std::strerror(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, freeifaddrs);
  std::vector<std::pair<std::string, std::string>> all;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list.get(); each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0) continue;
      // An address that is valid on one link only means nothing to others.
      const auto* const six = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
      char text[NI_MAXHOST] = {};
      const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(each->ifa_addr, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
        all.emplace_back(each->ifa_name, text);
    }
  }
  return all;
}

/// Tries the ports in turn.
net::Listening listen_in_range(const std::string& address, const TcpOptions& options) {
  for (uint32_t port = options.port_first;; ++port) {
    try {
      return net::listen_at(address, static_cast<uint16_t>(port));
    } catch (const OsError& error) {
      if (error.code != EADDRINUSE || port >= options.port_last) throw;
    }
  }
}

}  // namespace

std::string address_of_interface(const std::string& name, const std::string& option) {
  for (const auto& [interface, address] : interfaces())
    if (name == interface || name == address) return address;
  throw InvalidArgument(option, "an interface that is up and has an address: " + interfaces_text(),
                        "'" + name + "'");
}

std::string interfaces_text() {
  std::string text;
  for (const auto& [interface, address] : interfaces())
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", interface, address);
  return text;
}

TcpConnector::TcpConnector(const TcpOptions& options, const Self& self)
    : options_(options), self_(self), key_(self.secret, "tokenyard network") {
  if (options.paths > kPathsMax) {
    throw InvalidArgument("connections", fmt::format("at most {}", kPathsMax),
                          fmt::format("{}", options.paths));
  }
  endpoint_.incarnation = net::random_number();
  const auto listen = [&](const std::string& address, const net::Origin& origin) {
    listening_.push_back(listen_in_range(address, options));
    endpoint_.places.push_back({listening_.back().address, listening_.back().port});
    origins_.push_back(origin);
  };
  for (const std::string& interface : options.interfaces) {
    const std::string address = address_of_interface(interface);
    listen(address, {.address = address, .interface = interface == address ? "" : interface});
  }
  if (options.interfaces.empty())
    listen(options.address.empty() ? net::own_address(std::nullopt) : options.address, {});
}

net::Introduction TcpConnector::introduction(uint32_t path, uint32_t life, uint64_t sought) const {
  return {.purpose = net::Purpose::member,
          .job = 0,
          .self = {.slot = self_.rank * kSlotsPerRank + path, .incarnation = endpoint_.incarnation},
          .epoch = uint64_t{life} << 32 | self_.epoch,
          .sought = sought};
}

void TcpConnector::begin(const std::map<uint32_t, TcpEndpoint>& peers, uint32_t paths) {
  for (const auto& [rank, endpoint] : peers) {
    Peer& peer = peers_[rank];
    peer.endpoint = endpoint;
    peer.paths.resize(paths);
  }
}

bool TcpConnector::step(TimePoint now) {
  accept(now);
  advance_pending(now);
  bool all = true;
  for (auto& [rank, peer] : peers_) {
    for (uint32_t path = 0; path < peer.paths.size(); ++path) {
      if (peer.paths[path].wanted && rank < self_.rank) dial(rank, peer, path, now);
      all = all && !peer.paths[path].wanted;
    }
  }
  return all;
}

void TcpConnector::dial(uint32_t rank, Peer& peer, uint32_t number, TimePoint now) {
  Path& path = peer.paths[number];
  const net::Address& place = peer.endpoint.places[number % peer.endpoint.places.size()];
  try {
    if (!path.dialling) {
      if (now < path.rests_until) return;
      // A peer that has made an attempt's connection takes no other of that life.
      if (again_) ++path.life;
      path.dialling.emplace(Greeting{
          .socket = net::connect_to(place.host, place.port, origins_[number % origins_.size()]),
          .handshake = net::Handshake(net::Handshake::Side::dialler, key_,
                                      introduction(number, path.life, peer.endpoint.incarnation)),
          .since = now,
          .output = {},
          .input = {}});
      tune(path.dialling->socket);
    }
    const Outcome outcome = advance(*path.dialling, now);
    if (outcome == Outcome::waits &&
        now - path.dialling->since < (again_ ? kRedialTime : kDialTime))
      return;
    const net::Introduction& there = path.dialling->handshake.peer();
    if (outcome == Outcome::done && static_cast<uint32_t>(there.epoch) == self_.epoch &&
        there.self.slot / kSlotsPerRank == rank &&
        there.self.incarnation == peer.endpoint.incarnation) {
      net::pace_a_long_way(path.dialling->socket);
      path.socket = std::move(path.dialling->socket);
      path.wanted = false;
      path.rest = kDialRest;
    } else if (outcome == Outcome::done) {
      peer.why = "another process answers";
    } else {
      peer.why = fmt::format("{} port {}: {}", place.host, place.port,
                             outcome == Outcome::waits ? "no answer" : std::strerror(errno));
    }
  } catch (const net::ProtocolError& error) {
    peer.why = fmt::format("what answers there {}", error.what());
  } catch (const OsError& error) {
    peer.why = error.what();
  }
  path.dialling.reset();
  path.rests_until = now + path.rest;
  if (again_) path.rest = std::min(path.rest * 2, kDialRestMax);
}

void TcpConnector::tune(const FileDescriptor& socket) const {
  net::tune(socket, options_.socket_buffer_bytes);
  if (options_.traffic_class) net::set_traffic_class(socket, *options_.traffic_class);
}

void TcpConnector::accept(TimePoint now) {
  for (;;) {
    FileDescriptor socket;
    for (const net::Listening& listening : listening_)
      if (!socket) socket = net::accept_socket(listening.socket.native());
    if (!socket) return;
    tune(socket);
    if (pending_.size() == kPendingMax) pending_.pop_front();
    pending_.push_back(Greeting{
        .socket = std::move(socket),
        .handshake = net::Handshake(net::Handshake::Side::acceptor, key_, introduction(0, 0, 0)),
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
  const uint32_t rank = who.self.slot / kSlotsPerRank, number = who.self.slot % kSlotsPerRank;
  const auto life = static_cast<uint32_t>(who.epoch >> 32);
  if (static_cast<uint32_t>(who.epoch) != self_.epoch || who.sought != endpoint_.incarnation)
    return;
  const auto turned_away = turned_away_.find(rank);
  if (turned_away != turned_away_.end() &&
      turned_away->second.incarnation == who.self.incarnation) {
    // If it is lost with the connection, the peer dials again.
    (void)net::send_now(pending.socket, turned_away->second.farewell);
    return;
  }
  const auto peer = peers_.find(rank);
  if (peer == peers_.end() || rank < self_.rank || number >= peer->second.paths.size() ||
      who.self.incarnation != peer->second.endpoint.incarnation)
    return;
  Path& path = peer->second.paths[number];
  // A later one replaces an earlier one, whose dialler has given up on it.
  const bool is_first = life == 0 && path.life == 0 && (path.wanted || path.socket);
  if (!is_first && life <= path.life) return;
  net::pace_a_long_way(pending.socket);
  path.socket = std::move(pending.socket);
  path.life = life;
  path.wanted = false;
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
    if (connected(rank) < peer.paths.size()) return std::pair(rank, peer.why);
  return std::nullopt;
}

uint32_t TcpConnector::connected(uint32_t rank) const {
  return static_cast<uint32_t>(
      std::ranges::count_if(peers_.at(rank).paths, [](const Path& path) { return !path.wanted; }));
}

std::vector<TcpConnector::Made> TcpConnector::take_made() {
  std::vector<Made> made;
  for (auto& [rank, peer] : peers_) {
    for (uint32_t number = 0; number < peer.paths.size(); ++number) {
      Path& path = peer.paths[number];
      if (path.socket)
        made.push_back(
            {.rank = rank, .path = number, .life = path.life, .socket = std::move(path.socket)});
      path.socket = {};
    }
  }
  return made;
}

void TcpConnector::turn_away(uint32_t rank, std::span<const std::byte> farewell) {
  const auto peer = peers_.find(rank);
  if (peer == peers_.end()) return;
  turned_away_[rank] = {.incarnation = peer->second.endpoint.incarnation,
                        .farewell = {farewell.begin(), farewell.end()}};
  peers_.erase(peer);
}

void TcpConnector::make_again(uint32_t rank, uint32_t number) {
  again_ = true;
  const auto peer = peers_.find(rank);
  if (peer == peers_.end()) return;
  Path& path = peer->second.paths[number];
  if (path.wanted || path.socket) return;
  path.wanted = true;
  path.rests_until = {};
}

bool TcpConnector::busy() const {
  if (!pending_.empty()) return true;
  return std::ranges::any_of(peers_, [&](const auto& each) {
    return each.first < self_.rank &&
           std::ranges::any_of(each.second.paths, [](const Path& path) { return path.wanted; });
  });
}

std::vector<int> TcpConnector::descriptors() const {
  std::vector<int> all;
  for (const net::Listening& listening : listening_) all.push_back(listening.socket.native());
  return all;
}

std::pair<std::string, std::string> TcpConnector::ends_of(uint32_t rank, uint32_t path) const {
  const size_t own = path % listening_.size();
  std::string here = endpoint_.places[own].host;
  if (!origins_[own].interface.empty())
    here = fmt::format("{} ({})", origins_[own].interface, here);
  const auto peer = peers_.find(rank);
  if (peer == peers_.end()) return {here, ""};
  const auto& places = peer->second.endpoint.places;
  return {here, places[path % places.size()].host};
}

}  // namespace tokenyard
