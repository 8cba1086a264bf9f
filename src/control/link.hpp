/// The connection to one process of the job, with a bounded queue of outgoing messages. All calls
/// come from the control thread.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "control/words.hpp"
#include "net/connection.hpp"

namespace tokenyard::control {

inline Member member_of(const net::Introduction& who) {
  return {who.self.slot, who.self.incarnation};
}

class Link : public std::enable_shared_from_this<Link> {
 public:
  /// Limit of queued bytes. A peer that lets more pile up has not read for minutes.
  static constexpr size_t kQueueMax = 16u << 20;

  Link(std::shared_ptr<net::Connection> connection, net::Handshake::Side side)
      : side_(side), connection_(std::move(connection)) {}

  Member peer() const { return member_of(connection_->peer()); }
  /// Returns the side of the handshake that this process took.
  net::Handshake::Side side() const { return side_; }
  net::Connection& connection() { return *connection_; }

  /// Queues a message. Closes the link if the queue exceeds its limit.
  void send(uint16_t kind, std::vector<std::byte> payload);
  /// Sends what is queued, then closes. Later messages are ignored.
  void finish();
  void close();
  /// Returns whether nothing is queued or being written.
  bool idle() const { return !writing_; }

 private:
  net::awaitable<void> write();

  const net::Handshake::Side side_;
  std::shared_ptr<net::Connection> connection_;
  std::deque<net::SealedFrame> queue_;
  size_t queued_ = 0;
  bool writing_ = false;
  bool finishing_ = false;
};

}  // namespace tokenyard::control
