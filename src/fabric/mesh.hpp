/// Carries messages between the ranks of a job: threads of one process (in_process_mesh.hpp) or
/// processes (job/process_ranks.hpp). Independent of worlds: a mesh outlives those that are
/// rebuilt over it.
///
/// Invariant: a peer is marked as gone in the mailbox only behind all messages of it that have
/// arrived, so that a call which it has taken part in still succeeds.
#pragma once

#include <cstdint>

#include "fabric/mailbox.hpp"

namespace tokenyard {

class Mesh {
 public:
  /// Says goodbye to every peer.
  virtual ~Mesh() = default;
  /// Says goodbye before destruction; nothing is sent afterwards. Only for threads of one process.
  virtual void leave() = 0;
  virtual uint32_t slot() const = 0;
  virtual uint32_t slots() const = 0;
  /// Queues the message and returns; drops it if the peer is gone. Messages from one slot to
  /// another arrive in order.
  virtual void send(uint32_t to, const Message& message) = 0;
  /// Returns whether all messages have left this process, so that they arrive even if it is killed.
  virtual bool sent() const { return true; }
  virtual Mailbox& mailbox() = 0;
  /// Returns whether all ranks share a process, so that `Message::object` arrives.
  virtual bool one_process() const = 0;
};

}  // namespace tokenyard
