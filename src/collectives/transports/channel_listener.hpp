/// Accepts TCP connections. A connection must present a ConnectRequest sealed with the job's secret
/// within seconds (net/polled_listener.hpp); all others are rejected and counted.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "collectives/transports/dial.hpp"
#include "collectives/transports/epoch_gate.hpp"
#include "net/polled_listener.hpp"

namespace tokenyard::collectives {

struct AuthenticatedConnection {
  ConnectRequest connect_request;
  net::Digest connect_reply;  ///< to send once the connection is accepted
  FileDescriptor socket;
};

class ChannelListener {
 public:
  /// Listens on any free port of `address`. Throws OsError.
  ChannelListener(const EpochGate& gate, const net::Key& key, const std::string& address,
                  net::Poller& poller, int buffer_bytes);

  const std::string& address() const { return listener_.address(); }
  uint16_t port() const { return listener_.port(); }

  /// Returns the connections whose epoch is the current one.
  std::vector<AuthenticatedConnection> poll(WireTime now);
  /// Returns whether connections wait that cannot be accepted for lack of descriptors.
  bool is_short() const { return listener_.is_short(); }
  void count_refused() { ++refused_; }
  /// Callable from any thread.
  uint64_t refused() const { return refused_ + listener_.dropped(); }

 private:
  /// Keeps or rejects a connection by its first bytes.
  void judge(net::PolledListener::Arrival arrival,
             std::vector<AuthenticatedConnection>& connections);

  const EpochGate& gate_;
  const net::Key key_;
  net::PolledListener listener_;
  std::vector<AuthenticatedConnection> early_;
  std::atomic<uint64_t> refused_ = 0;
};

}  // namespace tokenyard::collectives
