/// The name of a Unix socket that lies in no file system, as the system calls want it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string_view>

namespace tokenyard::net {

class AbstractAddress {
 public:
  /// Of a longer name than the system takes, the beginning counts.
  explicit AbstractAddress(std::string_view name);
  const sockaddr* native() const { return reinterpret_cast<const sockaddr*>(&native_); }
  socklen_t bytes() const { return bytes_; }

 private:
  sockaddr_un native_{};
  socklen_t bytes_;
};

}  // namespace tokenyard::net
