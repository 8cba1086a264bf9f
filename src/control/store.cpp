#include "control/store.hpp"

#include <string_view>

#include "control/file_store.hpp"
#include "control/tcp_store.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

constexpr std::string_view kFile = "file:";
constexpr std::string_view kTcp = "tcp://";
constexpr const char* kExpected = "file:/directory or tcp://host:port";

}  // namespace

std::optional<net::Address> tcp_address(const std::string& where) {
  if (!where.starts_with(kTcp)) return std::nullopt;
  auto address = net::parse_address(std::string_view(where).substr(kTcp.size()));
  if (!address) throw InvalidArgument("store", kExpected, where);
  return address;
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

}  // namespace tokenyard::control
