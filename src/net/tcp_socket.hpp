/// Sockets that never block, as channels use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

struct Listening {
  FileDescriptor socket;
  std::string address;  ///< as a number
  uint16_t port = 0;
};
/// At any free port of `address` (a number or a name). Throws OsError.
Listening listen_at(const std::string& address);
/// Nothing, and errno tells why, if there is nobody (or, as with an accepting process that has been
/// stopped, nobody yet: then later).
FileDescriptor accept_from(const FileDescriptor& listener);
/// Begins to connect; whether it succeeds, the first bytes sent will tell. Throws OsError if it
/// cannot even begin.
FileDescriptor connect_to(const std::string& address, uint16_t port);

/// For small messages at once and large ones in bulk.
///
/// TCP_USER_TIMEOUT is not set, on purpose: it also ends a connection whose receiver lives but has
/// not read for that long, and a rank may well compute for a minute before it takes part. That a
/// peer is gone is the control plane's to know; its epoch ends, and this socket with it.
void tune(const FileDescriptor& socket, int buffer_bytes);

struct Moved {
  size_t bytes = 0;
  int error = 0;      ///< 0: none but that there is nothing to move just now
  bool over = false;  ///< the other end has closed, or there was an error
};
Moved send_now(const FileDescriptor& socket, std::span<const std::byte> bytes);
Moved receive_now(const FileDescriptor& socket, std::span<std::byte> into);

}  // namespace tokenyard::net
