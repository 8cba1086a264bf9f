/// Sets up channels over shared memory. The initiator posts the segment with a ConnectRequest; the
/// acceptor maps it and marks it as taken, or posts a refusal. Messages of an epoch that has not
/// begun here are kept until it does.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/transports/connect_request.hpp"
#include "collectives/transports/datagram_mailbox.hpp"
#include "collectives/transports/epoch_gate.hpp"
#include "collectives/transports/segment.hpp"

namespace tokenyard::collectives {

/// News about a channel: its segment, or the reason why there is none.
struct SharedNews {
  ChannelName channel;
  std::optional<Segment> segment;
  std::string refusal;
};

class SharedPath {
 public:
  SharedPath(const EpochGate& gate, const net::Key& key) : gate_(gate), key_(key) {}

  const DatagramMailbox& mailbox() const { return mailbox_; }

  /// Makes a segment and posts it to the acceptor. Throws OsError if there is no memory for it.
  Segment invite(const ChannelName& channel, const std::string& mailbox, size_t ring_bytes);
  /// Tells the initiator to use TCP.
  void refuse(const ChannelName& channel, const std::string& mailbox, const std::string& words);

  std::vector<SharedNews> poll();
  /// Drops the outgoing messages of the epoch that ends.
  void begin_epoch();
  /// Returns whether messages wait for room in a mailbox, of which no descriptor tells.
  bool is_waiting() const { return !outbox_.empty(); }
  /// Callable from any thread.
  uint64_t refused() const { return refused_; }

 private:
  struct Outgoing {
    net::AbstractAddress to;
    std::vector<std::byte> bytes;
    FileDescriptor enclosed;
    ChannelName channel;
  };
  struct Early {
    ConnectRequest connect_request;
    FileDescriptor enclosed;
    bool enclosure_lost;
  };

  void post_outgoing(std::vector<SharedNews>& news);
  void read(MailboxMessage datagram, std::vector<SharedNews>& news);
  void open(Early datagram, std::vector<SharedNews>& news);

  const EpochGate& gate_;
  const net::Key key_;
  DatagramMailbox mailbox_;
  std::deque<Outgoing> outbox_;
  std::vector<Early> early_;
  std::atomic<uint64_t> refused_ = 0;
};

}  // namespace tokenyard::collectives
