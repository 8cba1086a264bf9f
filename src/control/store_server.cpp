#include "control/store_server.hpp"

#include <cerrno>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::control {

using store_protocol::Reply;
using store_protocol::Request;
using store_protocol::Verb;

namespace {

/// How long the network may swallow what the server sends to a client.
constexpr std::chrono::seconds kSilence{10};
/// Pause after a failed accept: clients may have closed connections by then.
constexpr std::chrono::milliseconds kRest{50};

net::TcpEndpoint resolved(asio::io_context& io, const std::string& host, uint16_t port,
                          Interfaces interfaces) {
  asio::ip::tcp::resolver resolver(io);
  net::TcpEndpoint place = *resolver.resolve(host, std::to_string(port)).begin();
  const bool is_loopback = place.address().is_loopback();
  // Some systems resolve their own name to a loopback address, which other hosts cannot reach.
  asio::error_code not_numeric;
  asio::ip::make_address(host, not_numeric);
  const bool is_own_name = not_numeric && host != "localhost" && is_loopback;
  if (is_own_name || (interfaces == Interfaces::every && !is_loopback)) {
    if (place.address().is_v6()) {
      place.address(asio::ip::address_v6::any());
    } else {
      place.address(asio::ip::address_v4::any());
    }
  }
  return place;
}

net::Listener listener_at(asio::io_context& io, const std::string& host, uint16_t port,
                          Interfaces interfaces) {
  try {
    return {io.get_executor(), resolved(io, host, port, interfaces)};
  } catch (const std::system_error& error) {
    throw OsError("listening for store clients at " + host + ":" + std::to_string(port),
                  error.code().value(), error.code().message());
  }
}

Store::Value bytes_of_number(uint64_t number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

StoreServer::StoreServer(const std::string& host, uint16_t port, const std::string& secret,
                         Interfaces interfaces)
    : key_(store_protocol::key_of(secret)),
      instance_(net::random_number()),
      io_(1),
      listener_(listener_at(io_, host, port, interfaces)) {
  const auto accepted = [this](net::TcpSocket socket, net::Pending place) {
    return attend(std::make_shared<net::Connection>(std::move(socket), kSilence), std::move(place));
  };
  // A client counts as pending for as long as it is connected.
  asio::co_spawn(io_,
                 listener_.serve({.pending_max = kConnectionsMax, .rest = kRest}, accepted,
                                 [this] { ++refused_; }),
                 asio::detached);
  thread_ = std::thread([this] { io_.run(); });
}

std::unique_ptr<StoreServer> StoreServer::if_free(const std::string& host, uint16_t port,
                                                  const std::string& secret,
                                                  Interfaces interfaces) {
  try {
    return std::make_unique<StoreServer>(host, port, secret, interfaces);
  } catch (const OsError& error) {
    if (error.code != EADDRINUSE && error.code != EADDRNOTAVAIL) throw;
    return nullptr;
  }
}

StoreServer::~StoreServer() {
  io_.stop();
  thread_.join();
}

net::awaitable<void> StoreServer::attend(std::shared_ptr<net::Connection> client, net::Pending) {
  try {
    {
      const net::StreamTimeout timeout(client, net::kHandshakeMax);
      const net::Introduction self = store_protocol::introduction();
      co_await client->shake_hands(net::Handshake::Side::acceptor, key_, self);
    }
    const auto greeting = store_protocol::encode(Reply{.value = bytes_of_number(instance_)});
    co_await client->write(static_cast<uint16_t>(Verb::greeting), greeting);
    for (;;) {
      const net::SealedFrame frame = co_await client->read();
      const auto reply = store_protocol::encode(answer(store_protocol::decode_request(frame)));
      co_await client->write(static_cast<uint16_t>(Verb::reply), reply);
    }
  } catch (const net::ProtocolError&) {
    ++refused_;
  } catch (const std::system_error&) {
    // The client is gone, or was silent for too long.
    if (client->peer().purpose != net::Purpose::store) ++refused_;
  }
  client->close();
}

Reply StoreServer::answer(const Request& request) {
  const auto found = values_.find(request.key);
  std::optional<Store::Value> now;
  if (found != values_.end()) now = found->second;
  const bool change = request.verb == Verb::set ||
                      (request.verb == Verb::compare_and_set && now == request.expected);
  if (!change) return {.value = now};

  const size_t before = now ? request.key.size() + now->size() : 0;
  const size_t after = request.key.size() + request.value.size();
  if (bytes_ - before + after > kBytesMax) return {.value = now, .full = true};
  bytes_ = bytes_ - before + after;
  values_[request.key] = request.value;
  return {.value = request.value};
}

}  // namespace tokenyard::control
