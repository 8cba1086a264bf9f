/// Receives messages from other processes of this host: a Unix datagram socket with an abstract
/// name. Messages carry ConnectRequests with shared memory attached; an empty datagram is a
/// doorbell, which ends a sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "net/abstract_address.hpp"

namespace tokenyard::collectives {

struct MailboxMessage {
  std::vector<std::byte> bytes;
  FileDescriptor enclosed;      ///< if one was attached and a descriptor was free
  bool enclosure_lost = false;  ///< one was attached, but no descriptor was free
  bool own_user = false;        ///< sent by a process of this user, as the kernel attests
};

enum class Posted : uint8_t {
  yes,
  not_now,  ///< the mailbox is full, or a resource is short for now
  never,    ///< no process is there
};

class DatagramMailbox {
 public:
  DatagramMailbox();

  const std::string& name() const { return name_; }
  /// Returns the descriptor to watch for arrivals.
  int native() const { return socket_.native(); }

  Posted post(const net::AbstractAddress& to, const std::vector<std::byte>& bytes,
              const FileDescriptor& enclosed);
  /// Returns the next message, or nothing. Doorbells are messages without bytes.
  std::optional<MailboxMessage> take();
  /// A full mailbox counts as rung: its owner has not looked yet.
  void ring_doorbell(const net::AbstractAddress& to) const;

 private:
  std::string name_;
  FileDescriptor socket_;
};

}  // namespace tokenyard::collectives
