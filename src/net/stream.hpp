/// TCP connections for coroutines. All calls come from one I/O thread.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tokenyard::net {

using asio::awaitable;
using asio::use_awaitable;
using TcpSocket = asio::ip::tcp::socket;
using TcpEndpoint = asio::ip::tcp::endpoint;

class Stream {
 public:
  /// `silence`: how long sent bytes may stay unacknowledged before the connection breaks. A stopped
  /// process goes unnoticed, since its kernel still acknowledges.
  Stream(TcpSocket socket, std::chrono::nanoseconds silence);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // All throw std::system_error if the connection ends. One read and one write may be pending.

  /// Reads until `into` is full.
  awaitable<void> read_bytes(std::span<std::byte> into);
  /// Writes all of `bytes`.
  awaitable<void> write_bytes(std::span<const std::byte> bytes);

  /// Sends what the system accepts without blocking and ignores errors; for a last message.
  void try_to_write(std::span<const std::byte> bytes);
  /// Ends the outgoing stream after the bytes written so far.
  void finish_writing();
  /// Ends the incoming stream after the bytes that have arrived.
  void finish_reading();
  /// Makes pending and later reads and writes fail.
  void close();

  bool is_open() const { return socket_.is_open(); }
  asio::any_io_executor executor() { return socket_.get_executor(); }
  const TcpEndpoint& remote() const { return remote_; }
  std::string remote_text() const;

 private:
  TcpSocket socket_;
  TcpEndpoint remote_;
};

/// Closes a stream after `time` unless destroyed first, so that a silent peer cannot stall us.
class StreamTimeout {
 public:
  StreamTimeout(std::shared_ptr<Stream> stream, std::chrono::nanoseconds time);
  ~StreamTimeout();
  StreamTimeout(const StreamTimeout&) = delete;
  StreamTimeout& operator=(const StreamTimeout&) = delete;

 private:
  asio::steady_timer timer_;
};

/// Suspends the coroutine for `time`; the thread goes on with other work.
awaitable<void> pause(std::chrono::nanoseconds time);

// Connect, and throw std::system_error on failure. `time` limits an attempt; without it, the
// system's own limit applies. Forked children inherit none of these sockets.

awaitable<TcpSocket> dial(TcpEndpoint where, std::optional<std::chrono::nanoseconds> time);
/// Tries each address of the host in turn.
awaitable<TcpSocket> dial(std::string host, uint16_t port,
                          std::optional<std::chrono::nanoseconds> time_each);

}  // namespace tokenyard::net
