/// How channels over shared memory come about: the maker posts the segment with an invitation, the
/// taker maps it and says so in it, or posts a refusal. Letters of an epoch that has not begun here
/// are kept until it does.
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

/// News about a channel: its segment, or that there will be none.
struct SharedNews {
  ChannelName channel;
  std::optional<Segment> segment;
  std::string refusal;
};

class SharedPath {
 public:
  SharedPath(const EpochGate& gate, const net::Key& key) : gate_(gate), key_(key) {}

  const DatagramMailbox& mailbox() const { return mailbox_; }

  /// A segment of which the taker is going to hear. Throws OsError where there is no memory for it.
  Segment invite(const ChannelName& channel, const std::string& mailbox, size_t ring_bytes);
  /// Tells the maker to use TCP.
  void refuse(const ChannelName& channel, const std::string& mailbox, const std::string& words);

  std::vector<SharedNews> poll();
  /// Forgets the letters of the epoch that ends.
  void begin_epoch();
  /// Letters that wait for room in another's box, which nothing tells of.
  bool is_waiting() const { return !outbox_.empty(); }
  /// Any thread may ask.
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
