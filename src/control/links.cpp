#include "control/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

net::Listener listener_at(asio::io_context& io, const std::string& address) {
  try {
    // The address may be one that only other hosts know, so a number tells only whether it is
    // loopback.
    return {io.get_executor(), {net::listening_address(address), 0}};
  } catch (const std::system_error& error) {
    throw OsError("listening for the other ranks at " + address, error.code().value(),
                  error.code().message());
  }
}

Epoch epoch_in(const net::SealedFrame& frame) {
  Epoch epoch = 0;
  if (frame.payload.size() == sizeof epoch) {
    std::memcpy(&epoch, frame.payload.data(), sizeof epoch);
  }
  return epoch;
}

}  // namespace

Links::Links(asio::io_context& io, const net::Key& key, const std::string& address,
             const net::Introduction& self, std::chrono::nanoseconds silence,
             LinkListener& listener)
    : io_(io),
      key_(key),
      self_(self),
      silence_(silence),
      listener_(listener),
      incoming_(listener_at(io, address)) {
  const auto accepted = [this](net::TcpSocket socket, net::Pending pending) {
    return greet(std::make_shared<net::Connection>(std::move(socket), silence_),
                 std::move(pending));
  };
  const auto full = [this] {
    listener_.turned_away("a connection", "came while too many others had not authenticated");
  };
  asio::co_spawn(io_, incoming_.serve({.pending_max = kPendingMax}, accepted, full),
                 asio::detached);
}

void Links::introduce_as(net::Purpose purpose, Epoch epoch) {
  self_.purpose = purpose;
  self_.epoch = epoch;
}

void Links::want(std::map<Member, ControlEndpoint> wanted) {
  wanted_ = std::move(wanted);
  for (const auto& [peer, control_endpoint] : wanted_) dial(peer);
}

Link* Links::at(const Member& peer) const {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second.get();
}

void Links::send(const Member& peer, Topic topic, std::vector<std::byte> payload) {
  if (Link* const link = at(peer)) link->send(static_cast<uint16_t>(topic), std::move(payload));
}

void Links::send_in_parts(const Member& peer, Bytes message) {
  send_in_parts(peer, {static_cast<uint16_t>(Topic::part), static_cast<uint16_t>(Topic::last),
                       std::move(message)});
}

void Links::say_goodbye(const Member& peer) {
  const auto kind = static_cast<uint16_t>(Topic::goodbye);
  send_in_parts(peer, {kind, kind, std::make_shared<const std::vector<std::byte>>()});
}

void Links::send_in_parts(const Member& peer, Link::Bulk message) {
  if (Link* const link = at(peer)) return link->send_in_parts(std::move(message));
  const auto unsent = unsent_.find(peer);
  if (unsent != unsent_.end()) unsent->second.push_back(std::move(message));
}

void Links::hang_up(const Member& peer) {
  if (Link* const link = at(peer)) link->finish();
  part(peer);
}

void Links::part(const Member& peer) {
  unsent_.erase(peer);
  const auto found = links_.find(peer);
  if (found == links_.end()) return;
  const std::shared_ptr<Link> link = found->second;
  links_.erase(found);
  parting_.insert(link);
  asio::co_spawn(io_, close_later(link), asio::detached);
}

/// Our end stays open for writing: a connection that is closed both ways is reset by data that
/// still come, and what had arrived before them would be lost.
void Links::expel(const Member& peer) {
  if (Link* const link = at(peer)) link->finish_reading();
  part(peer);
}

void Links::hang_up_on_all() {
  wanted_.clear();
  incoming_.close();
  for (const Member& peer : peers()) hang_up(peer);
}

bool Links::idle() const {
  return std::ranges::all_of(parting_, [](const auto& link) { return link->idle(); });
}

std::vector<Member> Links::peers() const {
  std::vector<Member> all;
  for (const auto& [peer, link] : links_) all.push_back(peer);
  return all;
}

net::awaitable<void> Links::greet(std::shared_ptr<net::Connection> connection,
                                  net::Pending pending) {
  std::string reason = "did not authenticate";
  try {
    const net::StreamTimeout timeout(connection, net::kHandshakeMax);
    const net::Introduction self = self_;
    co_await connection->shake_hands(net::Handshake::Side::acceptor, key_, self);
    reason.clear();
    if (const auto since = listener_.fenced_since(connection->peer())) {
      const auto bytes = std::as_bytes(std::span(&*since, 1));
      co_await connection->write(static_cast<uint16_t>(Topic::refusal), bytes);
      reason = fmt::format("was rank {} until epoch {}", connection->peer().self.slot, *since);
    } else {
      co_await connection->write(static_cast<uint16_t>(Topic::connect_reply), {});
    }
  } catch (const net::ProtocolError& stranger) {
    reason = stranger.what();
  } catch (const std::system_error&) {
    if (reason.empty()) reason = "went away";
  }
  pending.release();
  if (reason.empty()) {
    adopt(std::move(connection), net::Handshake::Side::acceptor);
  } else {
    connection->finish_writing();
    listener_.turned_away(connection->remote_text(), reason);
  }
}

void Links::dial(const Member& peer) {
  if (links_.contains(peer) || dialling_.contains(peer)) return;
  dialling_.insert(peer);
  asio::co_spawn(io_, keep_dialling(peer), asio::detached);
}

net::awaitable<void> Links::keep_dialling(Member peer) {
  std::chrono::milliseconds rest = kPauseMin;
  while (wanted_.contains(peer) && !links_.contains(peer)) {
    const ControlEndpoint control_endpoint = wanted_.at(peer);
    try {
      co_await reach(control_endpoint);
      break;
    } catch (const net::ProtocolError& stranger) {
      listener_.unreachable(peer, fmt::format("the process at {}:{} {}", control_endpoint.address,
                                              control_endpoint.port, stranger.what()));
    } catch (const std::system_error& error) {
      listener_.unreachable(peer, fmt::format("{}:{}: {}", control_endpoint.address,
                                              control_endpoint.port, error.code().message()));
    }
    co_await net::pause(rest);
    rest = std::min(rest * 2, kPauseMax);
  }
  dialling_.erase(peer);
}

net::awaitable<void> Links::reach(const ControlEndpoint& control_endpoint) {
  net::TcpSocket socket =
      co_await net::dial(control_endpoint.address, control_endpoint.port, kDialMax);
  const auto connection = std::make_shared<net::Connection>(std::move(socket), silence_);
  const net::StreamTimeout timeout(connection, net::kHandshakeMax);
  net::Introduction self = self_;
  self.sought = control_endpoint.member.incarnation;
  co_await connection->shake_hands(net::Handshake::Side::dialler, key_, self);
  if (member_of(connection->peer()) != control_endpoint.member)
    throw net::ProtocolError("is another process of this job");
  const net::SealedFrame frame = co_await connection->read();
  if (frame.kind == static_cast<uint16_t>(Topic::refusal)) {
    listener_.refused(control_endpoint.member, epoch_in(frame));
    co_return;
  }
  if (frame.kind != static_cast<uint16_t>(Topic::connect_reply))
    throw net::ProtocolError("sent no connect reply");
  adopt(connection, net::Handshake::Side::dialler);
}

void Links::adopt(std::shared_ptr<net::Connection> connection, net::Handshake::Side side) {
  const Member peer = member_of(connection->peer());
  const auto link = std::make_shared<Link>(connection, side);
  asio::co_spawn(io_, listen_to(link), asio::detached);
  const auto found = links_.find(peer);
  if (found != links_.end()) {
    if (is_kept_over(*found->second, *link)) return put_aside(link);
    if (found->second->side() == link->side()) found->second->give_up();
    if (!found->second->is_made()) unsent_[peer] = found->second->take_unsent();
    put_aside(found->second);
  }
  links_[peer] = link;
  for (Link::Bulk& message : std::exchange(unsent_[peer], {}))
    link->send_in_parts(std::move(message));
  unsent_.erase(peer);
  listener_.linked(peer, connection->peer().purpose);
}

/// Of two connections that one side has dialled, the later one wins: a process that dials again has
/// lost the earlier connection, whether or not we have noticed.
bool Links::is_kept_over(const Link& one, const Link& another) const {
  if (one.side() == another.side()) return false;
  const bool greater = member_of(self_) > one.peer();
  return one.side() == (greater ? net::Handshake::Side::dialler : net::Handshake::Side::acceptor);
}

void Links::put_aside(std::shared_ptr<Link> link) {
  aside_.insert(link);
  asio::co_spawn(io_, close_later(link), asio::detached);
}

net::awaitable<void> Links::listen_to(std::shared_ptr<Link> link) {
  const Member peer = link->peer();
  std::string reason = "closed the connection";
  const auto current = [&] {
    const auto found = links_.find(peer);
    return found != links_.end() && found->second == link;
  };
  try {
    for (;;) {
      const net::SealedFrame frame = co_await link->connection().read();
      const auto topic = static_cast<Topic>(frame.kind);
      link->take(is_of_ranks(topic));
      // After we have parted, all others are read and dropped until the peer hangs up.
      if (current() || aside_.contains(link) || is_of_ranks(topic))
        listener_.received(peer, topic, frame.payload);
    }
  } catch (const net::ProtocolError& stranger) {
    reason = stranger.what();
    if (current()) listener_.turned_away(link->connection().remote_text(), reason);
  } catch (const std::system_error& error) {
    reason = error.code().message();
  }
  if (current()) {
    if (!link->is_made()) unsent_[peer] = link->take_unsent();
    link->close();
    links_.erase(peer);
    if (link->is_made()) {
      listener_.lost(peer, reason);
      listener_.ended(peer);
    } else {
      listener_.unreachable(peer, reason);
    }
    if (wanted_.contains(peer)) dial(peer);
    co_return;
  }
  const bool was_aside = aside_.erase(link) != 0;
  // `close_later` closes a link that still has last messages to send.
  if (link->idle()) {
    link->close();
    parting_.erase(link);
  }
  // The other link of a surplus one goes on, as does the next one of one that was never made.
  if (!was_aside || (link->given_up() && link->is_made())) listener_.ended(peer);
}

net::awaitable<void> Links::close_later(std::shared_ptr<Link> link) {
  co_await until_still(link);
  // `listen_to` takes what has arrived, and ends; it must still find a surplus link in `aside_`.
  link->finish_reading();
  co_await until_still(link);
  link->close();
  parting_.erase(link);
}

net::awaitable<void> Links::until_still(std::shared_ptr<Link> link) {
  uint64_t before = link->moved();
  for (int still = 0; still < kFarewellTurns; ++still) {
    co_await net::pause(kFarewellMax / kFarewellTurns);
    if (std::exchange(before, link->moved()) != link->moved()) still = -1;
  }
}

}  // namespace tokenyard::control
