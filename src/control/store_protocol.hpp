/// The requests and replies between a store's server and its clients, in sealed frames. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/store.hpp"
#include "net/handshake.hpp"
#include "net/sealed_frame.hpp"

namespace tokenyard::control::store_protocol {

enum class Verb : uint16_t {
  greeting = 1,  ///< the server's first frame: a Reply with its instance number
  get,
  set,
  compare_and_set,
  reply,
};

inline constexpr size_t kKeyMax = 1024;
inline constexpr size_t kValueMax = size_t{1} << 20;

struct Request {
  Verb verb = Verb::get;
  std::string key;
  std::optional<Store::Value> expected;  ///< for compare_and_set
  Store::Value value;                    ///< for set and compare_and_set
};

struct Reply {
  std::optional<Store::Value> value;
  bool full = false;  ///< the server has no memory left for the value
};

std::vector<std::byte> encode(const Request& request);
std::vector<std::byte> encode(const Reply& reply);
/// Throw ProtocolError if the frame is invalid.
Request decode_request(const net::SealedFrame& frame);
Reply decode_reply(const net::SealedFrame& frame, Verb verb);

/// Returns the key by which server and clients authenticate each other, for all jobs alike.
net::Key key_of(const std::string& secret);
net::Introduction introduction();

}  // namespace tokenyard::control::store_protocol
