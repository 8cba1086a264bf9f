/// An authenticated connection: a handshake (handshake.hpp), then sealed frames in both directions
/// (sealed_frame.hpp). All calls come from one I/O thread.
#pragma once

#include <chrono>
#include <optional>

#include "net/handshake.hpp"
#include "net/sealed_frame.hpp"
#include "net/stream.hpp"

namespace tokenyard::net {

/// Time allowed for a handshake. A stranger may stay silent for so long, and blocks nobody.
inline constexpr std::chrono::seconds kHandshakeMax{2};

class Connection : public Stream {
 public:
  using Stream::Stream;

  /// Runs the handshake. Throws ProtocolError if the peer fails it, std::system_error if the
  /// connection ends.
  awaitable<void> shake_hands(Handshake::Side side, const Key& key, const Introduction& self);
  const Introduction& peer() const { return peer_; }

  // Only after the handshake; errors as above. One read and one write may be pending at a time.
  awaitable<SealedFrame> read();
  awaitable<void> write(uint16_t kind, std::span<const std::byte> payload);

 private:
  Introduction peer_;
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
};

}  // namespace tokenyard::net
