#include "control/store_server.hpp"

#include <cerrno>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::control {

using store_protocol::Reply;
using store_protocol::Request;
using store_protocol::Verb;

namespace {

/// How long the network may swallow what the server says to a client.
constexpr std::chrono::seconds kSilence{10};

/// Not every interface: then ranks on two hosts could both believe that they serve.
net::TcpEndpoint resolved(asio::io_context& io, const std::string& host, uint16_t port) {
  asio::ip::tcp::resolver resolver(io);
  net::TcpEndpoint place = *resolver.resolve(host, std::to_string(port)).begin();
  // Some systems know their own name as a loopback address, which other hosts cannot reach.
  asio::error_code a_name;
  asio::ip::make_address(host, a_name);
  if (a_name && host != "localhost" && place.address().is_loopback()) {
    place.address(asio::ip::address_v4::any());
  }
  return place;
}

net::TcpAcceptor acceptor_at(asio::io_context& io, const std::string& host, uint16_t port) {
  try {
    return net::listen(io.get_executor(), resolved(io, host, port));
  } catch (const std::system_error& error) {
    throw OsError("listen of a store at " + host + ":" + std::to_string(port), error.code().value(),
                  error.code().message());
  }
}

Store::Value bytes_of_number(uint64_t number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

StoreServer::StoreServer(const std::string& host, uint16_t port, const std::string& secret)
    : key_(store_protocol::key_of(secret)),
      instance_(net::random_number()),
      io_(1),
      acceptor_(acceptor_at(io_, host, port)),
      port_(acceptor_.local_endpoint().port()) {
  asio::co_spawn(io_, serve(), asio::detached);
  thread_ = std::thread([this] { io_.run(); });
}

std::unique_ptr<StoreServer> StoreServer::if_free(const std::string& host, uint16_t port,
                                                  const std::string& secret) {
  try {
    return std::make_unique<StoreServer>(host, port, secret);
  } catch (const OsError& error) {
    if (error.code != EADDRINUSE && error.code != EADDRNOTAVAIL) throw;
    return nullptr;
  }
}

StoreServer::~StoreServer() {
  io_.stop();
  thread_.join();
}

net::awaitable<void> StoreServer::serve() {
  for (;;) {
    net::TcpSocket socket = co_await net::accept(acceptor_);
    if (!socket.is_open()) {
      // No descriptors left, or a connection that is gone already: there may be others.
      co_await net::pause(std::chrono::milliseconds(50));
    } else if (connections_ == kConnectionsMax) {
      ++refused_;
    } else {
      auto client = std::make_shared<net::Connection>(std::move(socket), kSilence);
      asio::co_spawn(io_, attend(std::move(client)), asio::detached);
    }
  }
}

net::awaitable<void> StoreServer::attend(std::shared_ptr<net::Connection> client) {
  ++connections_;
  try {
    {
      const net::Patience patience(client, net::kHandshakeMax);
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
  } catch (const net::Stranger&) {
    ++refused_;
  } catch (const std::system_error&) {
    // Gone, or silent for too long.
    if (client->peer().purpose != net::Purpose::store) ++refused_;
  }
  client->close();
  --connections_;
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
