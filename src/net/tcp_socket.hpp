/// Non-blocking TCP sockets, as channels use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

struct Listening {
  FileDescriptor socket;
  std::string address;  ///< numeric address
  uint16_t port = 0;
};
/// Listens at a port, or at any free one, of `address` (an IP address or host name). Throws
/// OsError.
Listening listen_at(const std::string& address, uint16_t port = 0);
/// The end of a connection that is about to be made. Empty: as the system chooses.
struct Origin {
  std::string address;    ///< IP address
  std::string interface;  ///< its name; packets leave by it, whatever the routes say
};
/// Starts to connect; the first send or receive shows whether that succeeds. Throws OsError if it
/// cannot even start. An origin of the other address family counts as empty.
FileDescriptor connect_to(const std::string& address, uint16_t port, const Origin& from = {});

/// Tunes a socket for low latency of small messages and bulk transfer of large ones.
///
/// TCP_USER_TIMEOUT is deliberately not set: it also ends a connection whose receiver lives but has
/// not read for that long, and a rank may compute for a minute before it takes part. The control
/// plane detects dead peers; it ends the epoch, and this socket with it.
void tune(const FileDescriptor& socket, int buffer_bytes);
/// Sets the byte of IP packets that holds the DSCP in its upper six bits.
void set_traffic_class(const FileDescriptor& socket, uint8_t traffic_class);

struct Moved {
  size_t bytes = 0;
  int error = 0;      ///< 0: none; a call that would block is no error
  bool over = false;  ///< the peer has closed, or there was an error
};
Moved send_now(const FileDescriptor& socket, std::span<const std::byte> bytes);
Moved receive_now(const FileDescriptor& socket, std::span<std::byte> into);

}  // namespace tokenyard::net
