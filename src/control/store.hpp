/// A small key-value store that all ranks of a job can reach. They find one another in it, and it
/// holds the witness's register. Keys and values are bytes; values are small.
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

/// Callable from any thread. Every call throws OsError within a few seconds if the store cannot be
/// reached, so nobody waits for a dead one.
class Store {
 public:
  using Value = std::vector<std::byte>;
  virtual ~Store() = default;
  virtual std::optional<Value> get(const std::string& key) = 0;
  virtual void set(const std::string& key, const Value& value) = 0;
  /// Sets the key to `desired` if it holds `expected` (nothing: if it does not exist). Returns the
  /// value it holds afterwards.
  virtual Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                                const Value& desired) = 0;

  /// Opens "file:/directory" or "tcp://host:port". Throws InvalidArgument for any other text. The
  /// first call notices a store that cannot be reached.
  static std::shared_ptr<Store> open(const std::string& where, const std::string& job,
                                     const std::string& secret);
};

/// Parses "tcp://host:port". Returns nothing if the text does not begin with "tcp://"; throws
/// InvalidArgument if the rest is invalid.
std::optional<net::Address> tcp_address(const std::string& where);

}  // namespace tokenyard::control
