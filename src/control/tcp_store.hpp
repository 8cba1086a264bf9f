/// A client of a StoreServer. Uses one connection, opened on demand and again after it broke; one
/// call at a time.
#pragma once

#include <asio.hpp>
#include <memory>
#include <mutex>
#include <string>

#include "control/store.hpp"
#include "control/store_protocol.hpp"
#include "net/connection.hpp"

namespace tokenyard::control {

class TcpStore final : public Store {
 public:
  /// Connects at the first call. `job` prefixes the keys, so that jobs can share a store.
  TcpStore(std::string host, uint16_t port, std::string job, const std::string& secret);

  std::optional<Value> get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override;

  /// Time limit of a whole call, including connecting and a second attempt.
  static constexpr std::chrono::seconds kCallMax{4};

 private:
  using Clock = std::chrono::steady_clock;

  /// Throws OsError, at the latest after kCallMax.
  store_protocol::Reply call(store_protocol::Request request);
  /// Returns nothing if the connection broke.
  std::optional<store_protocol::Reply> attempt(const store_protocol::Request& request,
                                               Clock::time_point until);
  net::awaitable<store_protocol::Reply> exchange(const store_protocol::Request& request);
  net::awaitable<void> connect();
  void forget_connection();
  std::string place() const;

  const std::string host_;
  const uint16_t port_;
  const std::string job_;
  const net::Key key_;

  std::mutex mutex_;
  std::unique_ptr<asio::io_context> io_;  ///< new after each failure, so no old handler is left
  std::shared_ptr<net::Connection> connection_;
  std::string trouble_;  ///< why the connection broke
  /// Instance of the first server found. A later server does not have its memory; trusting it could
  /// let both halves of a job go on.
  std::optional<Value> instance_;
};

}  // namespace tokenyard::control
