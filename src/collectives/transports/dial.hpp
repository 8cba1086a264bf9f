/// One outgoing TCP connection of the initiator: connects, sends its ConnectRequest, and waits for
/// the reply. Failures are retried, at growing intervals, for as long as the epoch lasts.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "collectives/transports/channel_endpoint.hpp"
#include "collectives/transports/connect_request.hpp"
#include "net/poller.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard::collectives {

using WireTime = std::chrono::steady_clock::time_point;

class Dial {
 public:
  Dial(const ConnectRequest& connect_request, const net::Key& key, const ChannelEndpoint& to,
       int buffer_bytes);

  const ConnectRequest& connect_request() const { return connect_request_; }
  /// Returns the connection once the acceptor has replied.
  std::optional<FileDescriptor> poll(WireTime now, net::Poller& poller);
  /// Returns whether the next attempt is due after a pause, which no descriptor signals.
  bool is_pausing() const { return !socket_; }
  /// Returns the last error; empty if there was none.
  const std::string& trouble() const { return trouble_; }

 private:
  void fail(WireTime now, const std::string& why);

  ConnectRequest connect_request_;
  std::vector<std::byte> frame_;
  net::Digest expected_;
  std::string address_;
  uint16_t port_;
  int buffer_bytes_;

  FileDescriptor socket_;
  bool sent_ = false;
  net::Digest connect_reply_{};
  size_t connect_reply_bytes_ = 0;
  WireTime next_try_{};
  std::chrono::milliseconds pause_;
  std::string trouble_;
};

}  // namespace tokenyard::collectives
