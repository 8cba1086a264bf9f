/// A connection that carries frames. Used by the I/O thread alone.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "fabric/tcp/frame.hpp"

namespace tokenyard::tcp {

using asio::awaitable;
using asio::use_awaitable;
using Socket = asio::ip::tcp::socket;
using Endpoint = asio::ip::tcp::endpoint;
using Acceptor = asio::ip::tcp::acceptor;

/// The other end does not speak as it should. Its words are what(). Never leaves fabric/tcp.
class BadFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Stream {
 public:
  /// Sets the options that make a dead peer noticeable, see kSilenceMax.
  explicit Stream(Socket socket);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Throws BadFrame, or std::system_error when the connection ends.
  awaitable<Frame> read(const FrameRules& rules);
  awaitable<void> write(const Frame& frame);
  /// Pending and later reads and writes fail.
  void close();
  /// No more writes; the other end sees the end of the stream after what was written.
  void finish_writing();

  Socket& socket() { return socket_; }
  const Endpoint& remote() const { return remote_; }
  std::string remote_text() const;

 private:
  Socket socket_;
  Endpoint remote_;
};

/// Closes a stream unless it is dropped before the time is up: no stranger can stall a rendezvous
/// by connecting and keeping silent.
class Patience {
 public:
  Patience(std::shared_ptr<Stream> stream, std::chrono::nanoseconds time);
  ~Patience();

 private:
  asio::steady_timer timer_;
};

/// Lets the thread's other work go on for so long.
awaitable<void> pause(std::chrono::milliseconds time);

/// How long a network may swallow what is sent before the connection counts as broken. A stopped
/// process is not noticed by this: its kernel goes on answering.
inline constexpr std::chrono::seconds kSilenceMax{5};

}  // namespace tokenyard::tcp
