/// The effects of one peer's messages on this rank's memory. Pure: messages in, stores and reports
/// out. Inline puts and signals are checked here; long puts are the provider's, which checks its
/// own keys, and are only counted.
///
/// Invariant: a signal is applied after all inline puts that were sent before it, since messages
/// apply in the order in which they were sent, and after all long puts of its queue that were
/// written before it have landed, whichever land first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "fabric/proxy/registered_regions.hpp"
#include "libfabric/message.hpp"

namespace tokenyard::libfabric {

class InboxListener {
 public:
  virtual ~InboxListener() = default;
  /// A request of the peer's was refused here: the peer is to be told.
  virtual void refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
                      const NetworkRefusal& refusal) = 0;
  /// The peer's requests before `turn` have taken effect here: it is to be told.
  virtual void answer_settled(uint32_t peer, uint32_t queue, uint32_t turn) = 0;
  /// A message that waited has taken effect, or need not wait: its credit is free.
  virtual void credited(uint32_t peer) = 0;
  /// The peer writes to a key's memory no more, and all that it wrote has landed.
  virtual void released(uint32_t peer, MemoryKey key) = 0;
  /// Any other message, in its turn. May throw net::ProtocolError.
  virtual void take(uint32_t peer, const Message& message) = 0;
};

class PeerInbox {
 public:
  struct Options {
    uint32_t peer, queues;
    uint32_t credits;  ///< messages that may be under way
  };
  /// Both outlive this.
  PeerInbox(const Options& options, const RegisteredRegions& regions, InboxListener& listener);

  /// Takes a message of the peer. Throws net::ProtocolError; then this must not be used any more.
  void receive(const Message& message);
  /// So many long puts of a queue's group have landed, or will not come. Throws as above.
  void landed(uint32_t queue, uint32_t group, uint32_t count = 1);

 private:
  void take(const Message& message);
  void resume();
  void take_effect(const Message& message);
  /// Returns where a range begins, or null after a refusal.
  std::byte* target_of(const Message& message, uint64_t bytes);
  void refuse(uint32_t queue, NetworkCheck check, const NetworkRefusal& refusal);

  const Options options_;
  const RegisteredRegions& regions_;
  InboxListener& listener_;
  uint32_t sequence_ = 0;                                     ///< of the next message
  std::map<uint32_t, Message> early_;                         ///< by sequence
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> landed_;  ///< by queue and group
  std::vector<bool> ended_;       ///< [queues] one of its requests was refused
  std::vector<Message> waiting_;  ///< for puts, oldest first
};

}  // namespace tokenyard::libfabric
