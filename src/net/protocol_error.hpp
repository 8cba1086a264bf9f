/// A violation of the protocol by a peer.
#pragma once

#include <stdexcept>

namespace tokenyard::net {

/// The other end does not speak as it should, or is not one of us: what() says what gave it away
/// ("sent a garbled frame"). Whoever holds the connection catches it and closes that.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tokenyard::net
