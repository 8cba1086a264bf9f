/// TCP connections as coroutines use them. All of it lives on one I/O thread.
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
  /// `silence`: for how long the network may swallow what is sent before the connection breaks. A
  /// stopped process is not noticed by this: its kernel goes on answering.
  Stream(TcpSocket socket, std::chrono::nanoseconds silence);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Throw std::system_error when the connection ends. One read and one write at a time.

  /// Fills `into`.
  awaitable<void> read_bytes(std::span<std::byte> into);
  /// Writes all of `bytes`.
  awaitable<void> write_bytes(std::span<const std::byte> bytes);

  /// Sends what the system takes without waiting, and ignores errors: for last words.
  void try_to_write(std::span<const std::byte> bytes);
  /// The other end sees the end of the stream, after what was written.
  void finish_writing();
  /// Pending and later reads and writes fail.
  void close();

  bool is_open() const { return socket_.is_open(); }
  asio::any_io_executor executor() { return socket_.get_executor(); }
  const TcpEndpoint& remote() const { return remote_; }
  std::string remote_text() const;

 private:
  TcpSocket socket_;
  TcpEndpoint remote_;
};

/// Closes a stream unless it is dropped before the time is up, so that nobody stalls us by
/// connecting and keeping silent.
class StreamTimeout {
 public:
  StreamTimeout(std::shared_ptr<Stream> stream, std::chrono::nanoseconds time);
  ~StreamTimeout();
  StreamTimeout(const StreamTimeout&) = delete;
  StreamTimeout& operator=(const StreamTimeout&) = delete;

 private:
  asio::steady_timer timer_;
};

/// Lets the thread's other work go on for so long.
awaitable<void> pause(std::chrono::nanoseconds time);

// Connect, and throw std::system_error where that fails. `time`: after which a try is given up;
// nothing: when the system does. Children of this process inherit none of these connections.

awaitable<TcpSocket> dial(TcpEndpoint where, std::optional<std::chrono::nanoseconds> time);
/// Tries each address of the host.
awaitable<TcpSocket> dial(std::string host, uint16_t port,
                          std::optional<std::chrono::nanoseconds> time_each);

}  // namespace tokenyard::net
