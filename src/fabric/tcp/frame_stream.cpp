#include "fabric/tcp/frame_stream.hpp"

#include "net/frame.hpp"

namespace tokenyard::tcp {

awaitable<Frame> FrameStream::read(FrameRules rules) {
  FrameDecoder decoder(rules);
  co_return co_await net::read_frame(*this, decoder);
}

awaitable<void> FrameStream::write(const Frame& frame) {
  const std::vector<std::byte> bytes = encode(frame);
  co_await write_bytes(bytes);
}

}  // namespace tokenyard::tcp
