/// Accepts TCP connections without a thread of its own. Each poll accepts waiting connections and
/// returns those whose first message, of fixed length, has arrived; the caller identifies the peer
/// by it. A bounded number of connections is pending at a time, so strangers cost little and block
/// nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "net/poller.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard::net {

struct PolledListenerOptions {
  std::string address;          ///< IP address or host name; listens on any free port
  size_t first_bytes;           ///< length of each connection's first message
  int socket_buffer_bytes = 0;  ///< 0: the system's default
};

class PolledListener {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Arrival {
    FileDescriptor socket;
    std::vector<std::byte> first;
  };

  /// Connections and their data wake the thread that sleeps in `poller`, which must outlive this.
  /// Throws OsError.
  PolledListener(const PolledListenerOptions& options, Poller& poller);

  const std::string& address() const { return listening_.address; }
  uint16_t port() const { return listening_.port; }

  /// Returns the connections whose first message has been completed since the last call.
  std::vector<Arrival> poll(Time now);
  /// Returns whether the last accept failed for lack of descriptors or memory, so connections wait.
  bool is_short() const { return short_; }
  /// Returns the number of connections dropped before their first message was complete: by a
  /// timeout (`kPendingTime`), by their own end, or to make room for newer ones. Callable from any
  /// thread.
  uint64_t dropped() const { return dropped_; }

  static constexpr size_t kPendingMax = 64;
  static constexpr std::chrono::seconds kPendingTime{3};

 private:
  struct Pending {
    FileDescriptor socket;
    Time since;
    std::vector<std::byte> bytes;
    size_t got = 0;
  };

  void accept_all(Time now);
  /// Returns whether `pending` is finished, complete or not.
  bool on_message(Pending& pending, Time now, std::vector<Arrival>& arrivals);

  const Listening listening_;
  Poller& poller_;
  const size_t first_bytes_;
  const int buffer_bytes_;
  std::deque<Pending> pending_;  ///< oldest first
  bool short_ = false;
  std::atomic<uint64_t> dropped_ = 0;
};

}  // namespace tokenyard::net
