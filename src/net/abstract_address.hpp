/// Native address of a Unix socket in the abstract namespace, which needs no file system.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string_view>

namespace tokenyard::net {

class AbstractAddress {
 public:
  /// Truncates names longer than the system's limit (107 bytes on Linux).
  explicit AbstractAddress(std::string_view name);
  const sockaddr* native() const { return reinterpret_cast<const sockaddr*>(&native_); }
  socklen_t bytes() const { return bytes_; }

 private:
  sockaddr_un native_{};
  socklen_t bytes_;
};

}  // namespace tokenyard::net
