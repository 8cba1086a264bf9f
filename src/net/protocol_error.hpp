/// The exception for a peer that breaks the protocol.
#pragma once

#include <stdexcept>

namespace tokenyard::net {

/// The peer breaks the protocol or does not belong to the job. Its what() completes a sentence
/// about the peer ("sent a garbled frame"). The owner of the connection catches it and closes the
/// connection.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tokenyard::net
