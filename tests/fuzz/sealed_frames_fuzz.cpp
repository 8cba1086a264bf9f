// Sealed frames: bytes after the handshake, from a peer or from somebody between.
#include "net/sealed_frame.hpp"

#include "fuzz/fuzz.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::net {
namespace {

using fuzz::Input;
using fuzz::require;

constexpr uint32_t kFrames = 4;

/// Opens frames as a connection does. Returns how many were opened.
size_t open_all(Opener& opener, std::span<const std::byte> bytes, const auto& take) {
  size_t opened = 0;
  while (bytes.size() >= kFrameHeaderBytes) {
    const size_t rest = opener.judge(bytes.first<kFrameHeaderBytes>());
    require(rest <= kFramePayloadMax + kSealBytes, "a frame's length is limited before it is read");
    bytes = bytes.subspan(kFrameHeaderBytes);
    if (bytes.size() < rest) break;
    take(opener.open({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(rest)}), opened);
    bytes = bytes.subspan(rest);
    ++opened;
  }
  return opened;
}

void run(Input input) {
  const Key key("the secret of a job", "fuzz");
  Opener opener(key);
  if (input.flag()) {
    const size_t opened = open_all(opener, input.rest(), [](const SealedFrame&, size_t) {});
    require(opened == 0, "no frame opens without the key");
    return;
  }
  Sealer sealer(key);
  std::vector<SealedFrame> sent;
  std::vector<std::byte> wire;
  const bool flips = input.flag();
  const auto flipped = flips ? input.number<std::byte>() : std::byte{};
  const auto at = flips ? input.number<uint16_t>() : uint16_t{0};
  for (uint32_t i = 0; i < kFrames; ++i) {
    const auto payload = input.bytes(input.number<uint8_t>());
    sent.push_back({input.number<uint16_t>(), {payload.begin(), payload.end()}});
    const auto frame = sealer.seal(sent.back().kind, sent.back().payload);
    wire.insert(wire.end(), frame.begin(), frame.end());
  }
  wire[at % wire.size()] ^= flipped;
  const size_t opened = open_all(opener, wire, [&](const SealedFrame& frame, size_t number) {
    require(frame.kind == sent[number].kind && frame.payload == sent[number].payload,
            "a frame that opens is the one that was sealed");
  });
  require((opened == kFrames) == (flipped == std::byte{}), "a changed byte is noticed");
}

}  // namespace
}  // namespace tokenyard::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tokenyard::net::run({data, size});
  } catch (const tokenyard::net::ProtocolError&) {
    // The peer is refused.
  }
  return 0;
}
