/// The connection to one process of the job, with bounded queues of outgoing messages. All calls
/// come from the control thread.
///
/// Messages of the ranks (exchange.hpp) have a queue of their own and go in parts: between two
/// parts goes whatever the control plane has to say, so a large message delays no heartbeat. Each
/// queue keeps its order.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "control/words.hpp"
#include "net/connection.hpp"

namespace tokenyard::control {

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

inline Member member_of(const net::Introduction& who) {
  return {who.self.slot, who.self.incarnation};
}

class Link : public std::enable_shared_from_this<Link> {
 public:
  /// Limit of queued bytes. A peer that lets more pile up has not read for minutes.
  static constexpr size_t kQueueMax = 16u << 20;
  /// The same limit for messages of the ranks. A peer may send a few before it takes this rank's.
  static constexpr size_t kBulkMax = size_t{512} << 20;
  /// Largest part of a message.
  static constexpr size_t kPartMax = 256u << 10;

  Link(std::shared_ptr<net::Connection> connection, net::Handshake::Side side)
      : side_(side), connection_(std::move(connection)) {}

  Member peer() const { return member_of(connection_->peer()); }
  /// Returns the side of the handshake that this process took.
  net::Handshake::Side side() const { return side_; }
  net::Connection& connection() { return *connection_; }

  /// Queues a message. Closes the link if the queue exceeds its limit.
  void send(uint16_t kind, std::vector<std::byte> payload);
  /// A message of the ranks: frames of kind `part`, the last one of kind `last`.
  struct Bulk {
    uint16_t part, last;
    Bytes message;
    size_t sent = 0;  ///< bytes of it
  };
  /// Queues a message of the ranks, which goes out once the link is made. Closes the link if the
  /// queue exceeds its limit.
  void send_in_parts(Bulk message);
  /// Takes the queue of a link that has ended before it was made.
  std::deque<Bulk> take_unsent();
  /// Sends what is queued, then closes. Later messages are ignored.
  void finish();
  /// Takes what has arrived and nothing after it: the next read fails.
  void finish_reading() { connection_->finish_reading(); }
  void close();
  /// Returns whether nothing is queued or being written.
  bool idle() const { return !writing_ && bulk_.empty(); }
  /// The peer has dialled again, so it has lost this connection.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }
  /// Notes a frame that has been read; `of_ranks`: a part of a message of the peer's rank.
  void take(bool of_ranks);
  /// Returns whether a frame of the peer has arrived. If not, the peer may have given up while it
  /// connected, and is going to dial again.
  bool is_made() const { return heard_; }
  /// Counts the parts of ranks' messages that have been read or written.
  uint64_t moved() const { return moved_; }

 private:
  void start_writing();
  net::awaitable<void> write();
  net::awaitable<void> write_part();

  const net::Handshake::Side side_;
  std::shared_ptr<net::Connection> connection_;
  std::deque<net::SealedFrame> queue_;
  size_t queued_ = 0;
  std::deque<Bulk> bulk_;
  size_t bulk_queued_ = 0;
  bool writing_ = false;
  bool finishing_ = false;
  bool given_up_ = false;
  bool heard_ = false;
  uint64_t moved_ = 0;
};

}  // namespace tokenyard::control
