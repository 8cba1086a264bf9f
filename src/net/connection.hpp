/// A TCP connection of the control plane: a handshake, then sealed frames both ways. Lives on one
/// I/O thread.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "net/handshake.hpp"
#include "net/sealed_frame.hpp"

namespace tokenyard::net {

using asio::awaitable;
using asio::use_awaitable;
using TcpSocket = asio::ip::tcp::socket;
using TcpEndpoint = asio::ip::tcp::endpoint;
using TcpAcceptor = asio::ip::tcp::acceptor;

/// How long a connection has to prove itself. Strangers may keep silent; nobody waits for them.
inline constexpr std::chrono::seconds kHandshakeMax{2};

class Connection {
 public:
  /// `silence`: for how long the network may swallow what is sent, before the connection breaks.
  Connection(TcpSocket socket, std::chrono::nanoseconds silence);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Throws Stranger, or std::system_error when the connection ends.
  awaitable<void> shake_hands(Handshake::Side side, const Key& key, const Introduction& self);
  const Introduction& peer() const { return peer_; }

  // After the handshake. Throw as it does. One read and one write at a time.
  awaitable<SealedFrame> read();
  awaitable<void> write(uint16_t kind, std::span<const std::byte> payload);

  /// The other end sees the end of the stream, after what was written.
  void finish_writing();
  /// Pending and later reads and writes fail.
  void close();

  asio::any_io_executor executor() { return socket_.get_executor(); }
  const TcpEndpoint& remote() const { return remote_; }
  std::string remote_text() const;

 private:
  TcpSocket socket_;
  TcpEndpoint remote_;
  Introduction peer_;
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
};

/// Closes a connection unless it is dropped before the time is up.
class Patience {
 public:
  Patience(std::shared_ptr<Connection> connection, std::chrono::nanoseconds time);
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  asio::steady_timer timer_;
};

awaitable<void> pause(std::chrono::nanoseconds time);

// Children of this process inherit none of these.

/// Throws std::system_error.
TcpAcceptor listen(const asio::any_io_executor& executor, const TcpEndpoint& where);
/// Whoever comes next. Not open if there are no descriptors left, whoever came is gone already, or
/// the acceptor has been closed.
awaitable<TcpSocket> accept(TcpAcceptor& acceptor);
/// Connected, or std::system_error.
awaitable<TcpSocket> dial_endpoint(TcpEndpoint where, std::chrono::nanoseconds time);

}  // namespace tokenyard::net
