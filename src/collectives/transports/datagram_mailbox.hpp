/// Where processes of one host reach this one: a Unix datagram socket with an abstract name.
/// Letters carry invitations, with shared memory enclosed; an empty datagram is the bell that ends
/// a sleep.
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
  FileDescriptor enclosed;      ///< if there was one, and a number for it was free
  bool enclosure_lost = false;  ///< none was: this process has as many descriptors as it may
  bool own_user = false;        ///< the kernel says that a process of this user has sent it
};

enum class Posted : uint8_t {
  yes,
  not_now,  ///< the box is full, or the system is short of something that comes back
  never,    ///< nobody is there
};

class DatagramMailbox {
 public:
  DatagramMailbox();

  const std::string& name() const { return name_; }
  /// To be watched for arrivals.
  int native() const { return socket_.native(); }

  Posted post(const net::AbstractAddress& to, const std::vector<std::byte>& bytes,
              const FileDescriptor& enclosed);
  /// Nothing if the box is empty. Bells come as letters without bytes.
  std::optional<MailboxMessage> take();
  /// A full box rings as well: its owner has not looked yet.
  void ring_doorbell(const net::AbstractAddress& to) const;

 private:
  std::string name_;
  FileDescriptor socket_;
};

}  // namespace tokenyard::collectives
