/// What a client of the store's server and the server say to one another, in sealed frames. Pure.
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
  greeting = 1,  ///< the server's first frame: a Reply that holds its instance
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
  std::optional<Store::Value> expected;  ///< of compare_and_set
  Store::Value value;                    ///< of set and compare_and_set
};

struct Reply {
  std::optional<Store::Value> value;
  bool full = false;  ///< the server has no room for the value
};

std::vector<std::byte> encode(const Request& request);
std::vector<std::byte> encode(const Reply& reply);
/// Throw ProtocolError for what is not one.
Request decode_request(const net::SealedFrame& frame);
Reply decode_reply(const net::SealedFrame& frame, Verb verb);

/// Server and client prove to each other that they know this, whatever the job.
net::Key key_of(const std::string& secret);
net::Introduction introduction();

}  // namespace tokenyard::control::store_protocol
