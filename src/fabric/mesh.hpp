/// Carries messages between the ranks of a job: threads of one process (in_process_mesh.hpp) or
/// processes (tcp/mesh.hpp). Knows nothing of worlds; a mesh outlives the worlds rebuilt over it.
#pragma once

#include <cstdint>
#include <string>

#include "fabric/mailbox.hpp"

namespace tokenyard {

class Mesh {
 public:
  /// Says goodbye to every peer.
  virtual ~Mesh() = default;
  /// Says goodbye earlier than that; nothing is sent afterwards. Only among threads of a process.
  virtual void leave() = 0;
  virtual uint32_t slot() const = 0;
  virtual uint32_t slots() const = 0;
  /// Hands the message over and returns; a peer that is gone gets nothing. Messages from one seat
  /// to another arrive in order.
  virtual void send(uint32_t to, const Message& message) = 0;
  virtual Mailbox& mailbox() = 0;
  /// Whether `Message::object` arrives.
  virtual bool one_process() const = 0;
  /// How peers are reached, for people: "this process", "TCP".
  virtual std::string name() const = 0;
};

}  // namespace tokenyard
