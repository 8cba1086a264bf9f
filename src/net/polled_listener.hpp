/// Accepts TCP connections without a thread of its own: whoever polls it accepts what has come, and
/// takes each connection that has said its first words, which are of one length. Who a connection
/// is, the caller finds out from those. A few may be pending at a time, so that many of them cost
/// no more, and nobody waits for any.
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
  std::string address;          ///< a number or a name; any free port of it
  size_t first_bytes;           ///< that each connection says first
  int socket_buffer_bytes = 0;  ///< 0: the system's own choice
};

class PolledListener {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Arrival {
    FileDescriptor socket;
    std::vector<std::byte> first;
  };

  /// Whoever sleeps in `poller`, which must outlive this, is woken by connections and by what they
  /// say, for as long as they are open. Throws OsError.
  PolledListener(const PolledListenerOptions& options, Poller& poller);

  const std::string& address() const { return listening_.address; }
  uint16_t port() const { return listening_.port; }

  /// Returns those that have said their first words since the last call.
  std::vector<Arrival> poll(Time now);
  /// Connections wait outside that could not be accepted for want of descriptors.
  bool is_short() const { return short_; }
  /// Connections that said too little: within `kPendingTime`, before they ended, or before too many
  /// others had come. Any thread may ask.
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
  /// Whether there is no more to do with this one.
  bool on_message(Pending& pending, Time now, std::vector<Arrival>& arrivals);

  const Listening listening_;
  Poller& poller_;
  const size_t first_bytes_;
  const int buffer_bytes_;
  std::deque<Pending> pending_;  ///< the oldest first
  bool short_ = false;
  std::atomic<uint64_t> dropped_ = 0;
};

}  // namespace tokenyard::net
