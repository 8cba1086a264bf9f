/// An authenticated connection: a handshake, then sealed frames both ways. Lives on one I/O thread.
#pragma once

#include <chrono>
#include <optional>

#include "net/handshake.hpp"
#include "net/sealed_frame.hpp"
#include "net/stream.hpp"

namespace tokenyard::net {

/// How long a connection has to prove itself. Strangers may keep silent; nobody waits for them.
inline constexpr std::chrono::seconds kHandshakeMax{2};

class Connection : public Stream {
 public:
  using Stream::Stream;

  /// Throws ProtocolError, or std::system_error when the connection ends.
  awaitable<void> shake_hands(Handshake::Side side, const Key& key, const Introduction& self);
  const Introduction& peer() const { return peer_; }

  // After the handshake. Throw as it does. One read and one write at a time.
  awaitable<SealedFrame> read();
  awaitable<void> write(uint16_t kind, std::span<const std::byte> payload);

 private:
  Introduction peer_;
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
};

}  // namespace tokenyard::net
