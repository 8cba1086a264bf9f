#include "net/abstract_address.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tokenyard::net {

AbstractAddress::AbstractAddress(std::string_view name) {
  native_.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract.
  const size_t bytes = std::min(name.size(), sizeof native_.sun_path - 1);
  std::memcpy(native_.sun_path + 1, name.data(), bytes);
  bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

}  // namespace tokenyard::net
