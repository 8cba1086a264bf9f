/// A connection that carries frames. Used by the I/O thread alone.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>

#include "fabric/tcp/frame.hpp"
#include "net/stream.hpp"

namespace tokenyard::tcp {

using asio::awaitable;
using asio::use_awaitable;
using Socket = net::TcpSocket;
using Endpoint = net::TcpEndpoint;

/// How long a network may swallow what is sent before the connection counts as broken. A stopped
/// process is not noticed by this: its kernel goes on answering.
inline constexpr std::chrono::seconds kSilenceMax{5};

class FrameStream : public net::Stream {
 public:
  explicit FrameStream(Socket socket) : Stream(std::move(socket), kSilenceMax) {}

  /// Throws net::ProtocolError, or std::system_error when the connection ends.
  awaitable<Frame> read(FrameRules rules);
  awaitable<void> write(const Frame& frame);
};

}  // namespace tokenyard::tcp
