#include "net/connection.hpp"

#include <array>
#include <utility>

namespace tokenyard::net {

awaitable<void> Connection::shake_hands(Handshake::Side side, const Key& key,
                                        const Introduction& self) {
  Handshake handshake(side, key, self);
  std::array<std::byte, Handshake::kHelloBytes> bytes;
  for (;;) {
    const std::vector<std::byte> output = handshake.take_output();
    if (!output.empty()) co_await write_bytes(output);
    const size_t wanted = handshake.wanted();
    if (wanted == 0) break;
    co_await read_bytes(std::span(bytes).first(wanted));
    try {
      handshake.receive(std::span(bytes).first(wanted));
    } catch (const ProtocolError&) {
      // A last message to a stranger is short: it goes out at once or not at all.
      const std::vector<std::byte> last = handshake.take_output();
      try_to_write(last);
      throw;
    }
  }
  peer_ = handshake.peer();
  sealer_.emplace(handshake.sending_key());
  opener_.emplace(handshake.receiving_key());
}

awaitable<SealedFrame> Connection::read() {
  // The header is judged before any further byte is read or memory allocated.
  std::array<std::byte, kFrameHeaderBytes> header;
  co_await read_bytes(header);
  std::vector<std::byte> rest(opener_.value().judge(header));
  co_await read_bytes(rest);
  co_return opener_->open(std::move(rest));
}

awaitable<void> Connection::write(uint16_t kind, std::span<const std::byte> payload) {
  const std::vector<std::byte> frame = sealer_.value().seal(kind, payload);
  co_await write_bytes(frame);
}

}  // namespace tokenyard::net
