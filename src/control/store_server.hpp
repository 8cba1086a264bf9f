/// The server behind "tcp://host:port": a thread that holds keys and values in memory, for clients
/// that know the secret. Connections, keys, values and their total size are bounded.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "control/store.hpp"
#include "control/store_protocol.hpp"
#include "net/connection.hpp"
#include "net/listener.hpp"

namespace tokenyard::control {

/// Where a server listens.
enum class Interfaces : uint8_t {
  one,   ///< that of `host`: ranks of two hosts must not both believe that they serve
  every  ///< also that of an address which only other hosts know; loopback if `host` is
};

class StoreServer {
 public:
  /// Serves at once, on any free port if `port` is 0. Throws OsError if it cannot listen there.
  StoreServer(const std::string& host, uint16_t port, const std::string& secret,
              Interfaces interfaces = Interfaces::one);
  /// Like the constructor, but returns null if the port is taken or the host is another machine:
  /// then another process serves, or will.
  static std::unique_ptr<StoreServer> if_free(const std::string& host, uint16_t port,
                                              const std::string& secret,
                                              Interfaces interfaces = Interfaces::one);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  uint16_t port() const { return listener_.port(); }
  /// Returns the number of rejected connections.
  uint64_t refused() const { return refused_; }

  static constexpr uint32_t kConnectionsMax = 4096;
  static constexpr size_t kBytesMax = size_t{256} << 20;

 private:
  net::awaitable<void> attend(std::shared_ptr<net::Connection> client, net::Pending place);
  store_protocol::Reply answer(const store_protocol::Request& request);

  const net::Key key_;
  /// Identifies this server's memory: its clients notice if a later server does not have it.
  const uint64_t instance_;
  asio::io_context io_;
  net::Listener listener_;
  std::atomic<uint64_t> refused_ = 0;
  std::map<std::string, Store::Value> values_;
  size_t bytes_ = 0;
  std::thread thread_;
};

}  // namespace tokenyard::control
