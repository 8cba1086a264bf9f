/// Accepts TCP connections on an I/O thread and hands each to a callback. Who a connection is, the
/// callback finds out, with a handshake or without; until then the connection is pending, and a
/// listener has room for so many of those.
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
  uint32_t pending_max = std::numeric_limits<uint32_t>::max();
  /// After an accept that failed, for want of descriptors say: others may do better then.
  std::chrono::milliseconds rest{20};
  /// After a connection that came while `pending_max` others were pending.
  std::chrono::milliseconds rest_when_full{0};
};

/// One of the pending connections, until it is dropped or released.
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

  /// Listens at once; children of this process do not. Port 0: any. Throws std::system_error.
  Listener(const asio::any_io_executor& executor, const TcpEndpoint& where);

  /// Until `close`: each connection gets a coroutine `greet` of its own. One that comes while too
  /// many are pending is closed, and `full` called. Used by a coroutine that keeps this alive.
  awaitable<void> serve(
      ListenerOptions options, Greet greet, std::function<void()> full = [] {});
  void close();

  uint16_t port() const { return port_; }

 private:
  /// Whoever comes next. Not open if there are no descriptors left, whoever came is gone already,
  /// or the listener has been closed.
  awaitable<TcpSocket> accept();

  asio::ip::tcp::acceptor acceptor_;
  uint16_t port_;
  std::shared_ptr<uint32_t> pending_ = std::make_shared<uint32_t>(0);
};

/// Returns where to listen for whoever is told `host`: on loopback for a loopback number, else on
/// every interface. A name may stand for an address of a router in front of this host, and a number
/// be one that only others know this host by.
asio::ip::address listening_address(const std::string& host);

}  // namespace tokenyard::net
