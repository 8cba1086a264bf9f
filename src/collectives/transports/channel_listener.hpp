/// Where TCP connections come in. Whoever connects has to show an invitation that is sealed with
/// the job's secret, within seconds (net/polled_listener.hpp); everybody else is put out, and
/// counted.
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
  net::Digest connect_reply;  ///< to be sent by whoever lets the guest in
  FileDescriptor socket;
};

class ChannelListener {
 public:
  /// At any free port of the address. Throws OsError.
  ChannelListener(const EpochGate& gate, const net::Key& key, const std::string& address,
                  net::Poller& poller, int buffer_bytes);

  const std::string& address() const { return listener_.address(); }
  uint16_t port() const { return listener_.port(); }

  /// Those whose time is now.
  std::vector<AuthenticatedConnection> poll(WireTime now);
  /// Connections wait outside that could not be let in for want of descriptors.
  bool is_short() const { return listener_.is_short(); }
  void count_refused() { ++refused_; }
  /// Any thread may ask.
  uint64_t refused() const { return refused_ + listener_.dropped(); }

 private:
  /// Keeps or refuses one that has shown these bytes.
  void judge(net::PolledListener::Arrival arrival,
             std::vector<AuthenticatedConnection>& connections);

  const EpochGate& gate_;
  const net::Key key_;
  net::PolledListener listener_;
  std::vector<AuthenticatedConnection> early_;
  std::atomic<uint64_t> refused_ = 0;
};

}  // namespace tokenyard::collectives
