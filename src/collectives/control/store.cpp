#include "collectives/control/store.hpp"

#include <charconv>
#include <string_view>

#include "collectives/control/file_store.hpp"
#include "collectives/control/store_server.hpp"
#include "collectives/control/tcp_store.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

constexpr std::string_view kFile = "file:";
constexpr std::string_view kTcp = "tcp://";
constexpr const char* kExpected = "file:/directory or tcp://host:port";

}  // namespace

std::optional<StoreAddress> tcp_address(const std::string& where) {
  if (!where.starts_with(kTcp)) return std::nullopt;
  const std::string_view rest = std::string_view(where).substr(kTcp.size());
  const size_t colon = rest.rfind(':');
  StoreAddress address;
  if (colon != std::string_view::npos && colon > 0) {
    std::string_view host = rest.substr(0, colon);
    // An IPv6 address stands in brackets, since it has colons of its own.
    if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    const std::string_view port = rest.substr(colon + 1);
    const auto read = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (read.ec == std::errc() && read.ptr == port.data() + port.size() && address.port != 0) {
      address.host = host;
    }
  }
  if (address.host.empty()) throw InvalidArgument("store", kExpected, where);
  return address;
}

std::shared_ptr<void> serve_store(const std::string& where, const std::string& secret) {
  const auto address = tcp_address(where);
  if (!address) throw InvalidArgument("store", "tcp://host:port", where);
  return std::make_shared<StoreServer>(address->host, address->port, secret);
}

std::shared_ptr<Store> Store::open(const std::string& where, const std::string& job,
                                   const std::string& secret) {
  if (const auto address = tcp_address(where)) {
    return std::make_shared<TcpStore>(address->host, address->port, job, secret);
  }
  if (where.starts_with(kFile) && where.size() > kFile.size()) {
    return std::make_shared<FileStore>(where.substr(kFile.size()), job);
  }
  throw InvalidArgument("store", kExpected, where);
}

}  // namespace tokenyard::collectives
