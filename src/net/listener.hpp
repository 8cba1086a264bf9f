/// Accepts TCP connections on an I/O thread and passes each to a callback, which identifies the
/// peer, by a handshake or otherwise. Until then a connection counts as pending; the number of
/// pending connections is bounded.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "net/stream.hpp"

namespace tokenyard::net {

struct ListenerOptions {
  /// Largest number of pending connections; any further one is closed.
  uint32_t pending_max = std::numeric_limits<uint32_t>::max();
  /// Pause after a failed accept, for lack of descriptors for example: others may be freed.
  std::chrono::milliseconds rest{20};
  /// Pause after a connection that exceeded `pending_max`.
  std::chrono::milliseconds rest_when_full{0};
};

/// Counts as one pending connection until it is destroyed or released.
class Pending {
 public:
  explicit Pending(std::shared_ptr<uint32_t> count) : count_(std::move(count)) { ++*count_; }
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = delete;
  ~Pending() { release(); }

  void release() {
    if (count_) --*count_;
    count_.reset();
  }

 private:
  std::shared_ptr<uint32_t> count_;
};

class Listener {
 public:
  using Greet = std::function<awaitable<void>(TcpSocket, Pending)>;

  /// Listens at once, on any free port if the port is 0. Forked children do not inherit the socket.
  /// Throws std::system_error.
  Listener(const asio::any_io_executor& executor, const TcpEndpoint& where);

  /// Runs `greet` as a coroutine for each connection until `close`. Closes a connection that
  /// exceeds `pending_max` and calls `full`. The listener must outlive this coroutine.
  awaitable<void> serve(
      ListenerOptions options, Greet greet, std::function<void()> full = [] {});
  void close();

  uint16_t port() const { return port_; }

 private:
  /// Accepts the next connection. The result is not open if descriptors ran out, the peer is gone
  /// already, or the listener was closed.
  awaitable<TcpSocket> accept();

  asio::ip::tcp::acceptor acceptor_;
  uint16_t port_;
  std::shared_ptr<uint32_t> pending_ = std::make_shared<uint32_t>(0);
};

/// Returns the address to listen on if peers are told `host`: loopback for a loopback address, else
/// every interface, since a name may resolve to a router in front of this host, and an address may
/// be one that only other hosts know.
asio::ip::address listening_address(const std::string& host);

}  // namespace tokenyard::net
