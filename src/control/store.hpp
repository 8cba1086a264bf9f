/// A small key-value store that all ranks of a job can reach: where they find one another, and the
/// witness's memory. Names and values are bytes; values are small.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/address.hpp"

namespace tokenyard::control {

/// Any thread may call. Everything throws OsError where the store cannot be reached (within a few
/// seconds), so that nobody waits for a dead one.
class Store {
 public:
  using Value = std::vector<std::byte>;
  virtual ~Store() = default;
  virtual std::optional<Value> get(const std::string& key) = 0;
  virtual void set(const std::string& key, const Value& value) = 0;
  /// Sets the key to `desired` if it holds `expected` (nothing: if there is no such key). Returns
  /// what it holds afterwards.
  virtual Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                                const Value& desired) = 0;

  /// "file:/directory" or "tcp://host:port". Throws InvalidArgument for anything else. A store that
  /// cannot be reached is noticed by the first call.
  static std::shared_ptr<Store> open(const std::string& where, const std::string& job,
                                     const std::string& secret);
};

/// Returns where a "tcp://host:port" points to; nothing for what does not begin with "tcp://".
/// Throws InvalidArgument if the rest is no host and port.
std::optional<net::Address> tcp_address(const std::string& where);

/// Serves the store "tcp://host:port" for all who know the secret, until what it returns is
/// dropped. Throws OsError if it cannot listen there. Nothing is kept when it ends.
std::shared_ptr<void> serve_store(const std::string& where, const std::string& secret);

}  // namespace tokenyard::control
