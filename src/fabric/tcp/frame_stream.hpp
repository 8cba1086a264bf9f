/// A connection that carries frames. Only the I/O thread uses it.
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

/// How long sent data may stay unacknowledged before the connection counts as broken. This does not
/// detect a stopped process, whose kernel keeps acknowledging.
inline constexpr std::chrono::seconds kSilenceMax{5};

class FrameStream : public net::Stream {
 public:
  explicit FrameStream(Socket socket) : Stream(std::move(socket), kSilenceMax) {}

  /// Reads a frame. Throws net::ProtocolError, or std::system_error when the connection ends.
  awaitable<Frame> read(FrameRules rules);
  awaitable<void> write(const Frame& frame);
};

}  // namespace tokenyard::tcp
