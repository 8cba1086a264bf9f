/// The store that "tcp://host:port" means: a thread that keeps names and values in memory, for who
/// knows the secret. Everything is bounded: connections, keys, values, and their sum.
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

class StoreServer {
 public:
  /// Serves at once. `port` 0: any. Throws OsError if it cannot listen there.
  StoreServer(const std::string& host, uint16_t port, const std::string& secret);
  /// As the constructor, but null where the port is taken, or the host is another machine: then
  /// somebody else serves, or will.
  static std::unique_ptr<StoreServer> if_free(const std::string& host, uint16_t port,
                                              const std::string& secret);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  uint16_t port() const { return listener_.port(); }
  /// Connections that were turned away.
  uint64_t refused() const { return refused_; }

  static constexpr uint32_t kConnectionsMax = 4096;
  static constexpr size_t kBytesMax = size_t{256} << 20;

 private:
  net::awaitable<void> attend(std::shared_ptr<net::Connection> client, net::Pending place);
  store_protocol::Reply answer(const store_protocol::Request& request);

  const net::Key key_;
  /// Of this server's memory: tells clients that a server forgot what another one knew.
  const uint64_t instance_;
  asio::io_context io_;
  net::Listener listener_;
  std::atomic<uint64_t> refused_ = 0;
  std::map<std::string, Store::Value> values_;
  size_t bytes_ = 0;
  std::thread thread_;
};

}  // namespace tokenyard::control
