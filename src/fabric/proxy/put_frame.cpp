#include "fabric/proxy/put_frame.hpp"

#include <algorithm>

#include "base/little_endian.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard {

namespace {

void put_body(const PutFrame& frame, std::span<std::byte> to) {
  switch (frame.kind) {
    case PutFrameKind::put:
      put_number(to, frame.whole_offset);
      put_number(to, frame.whole_bytes);
      break;
    case PutFrameKind::put_inline:
      std::ranges::copy_n(frame.inlined.begin(),
                          std::min<uint32_t>(frame.inline_bytes, kNetworkInlineMax), to.begin());
      break;
    case PutFrameKind::signal:
    case PutFrameKind::settle:
      put_number(to, frame.addend);
      for (const uint32_t count : frame.counts) put_number(to, count);
      break;
    case PutFrameKind::refusal:
      put_number(to, frame.check);
      put_number(to, frame.refusal.region);
      put_number(to, frame.refusal.expected);
      put_number(to, frame.refusal.seen);
      break;
    case PutFrameKind::settled:
    case PutFrameKind::given_up:
      break;
    case PutFrameKind::taken:
    case PutFrameKind::closed:
      put_number(to, frame.path);
      put_number(to, frame.life);
      break;
  }
}

void take_body(PutFrame& frame, std::span<const std::byte> from) {
  switch (frame.kind) {
    case PutFrameKind::put:
      frame.whole_offset = take_number<uint64_t>(from);
      frame.whole_bytes = take_number<uint32_t>(from);
      break;
    case PutFrameKind::put_inline:
      std::ranges::copy(from.first(kNetworkInlineMax), frame.inlined.begin());
      break;
    case PutFrameKind::signal:
    case PutFrameKind::settle:
      frame.addend = take_number<uint64_t>(from);
      for (uint32_t& count : frame.counts) count = take_number<uint32_t>(from);
      break;
    case PutFrameKind::refusal:
      frame.check = take_number<NetworkCheck>(from);
      frame.refusal.region = take_number<uint32_t>(from);
      frame.refusal.expected = take_number<uint64_t>(from);
      frame.refusal.seen = take_number<uint64_t>(from);
      break;
    case PutFrameKind::settled:
    case PutFrameKind::given_up:
      break;
    case PutFrameKind::taken:
    case PutFrameKind::closed:
      frame.path = take_number<uint32_t>(from);
      frame.life = take_number<uint32_t>(from);
      break;
  }
}

/// Returns whether the fields that a kind does not use are 0, and the others possible.
bool is_sound(const PutFrame& frame) {
  const bool put = frame.kind == PutFrameKind::put;
  const bool inlined = frame.kind == PutFrameKind::put_inline;
  const bool signal = frame.kind == PutFrameKind::signal;
  const bool of_path = frame.kind == PutFrameKind::taken || frame.kind == PutFrameKind::closed;
  const bool counted =
      frame.kind == PutFrameKind::settle || frame.kind == PutFrameKind::settled || of_path;
  if (frame.origin > (put || inlined ? kPathsMax : 0)) return false;
  if (of_path && (frame.path >= kPathsMax || frame.queue != 0)) return false;
  if (frame.inline_bytes > (inlined ? kNetworkInlineMax : 0)) return false;
  if (!put && !inlined && !signal && (frame.key != 0 || frame.offset != 0)) return false;
  if (frame.bytes != 0 && !put) return false;
  if (frame.turn != 0 && !counted) return false;
  if (frame.kind == PutFrameKind::settle && frame.addend != 0) return false;
  if (frame.kind == PutFrameKind::refusal)
    return frame.check > NetworkCheck::none && frame.check <= kLastNetworkCheck;
  if (!put) return true;
  if (frame.whole_bytes > kNetworkPutMax || frame.bytes > frame.whole_bytes) return false;
  const uint64_t begin = frame.offset - frame.whole_offset;  // Wraps as the sum of a request does.
  return begin <= frame.whole_bytes - frame.bytes;
}

}  // namespace

bool PutFrame::operator==(const PutFrame& other) const {
  return encode(*this) == encode(other);
}

std::array<std::byte, kPutFrameBytes> encode(const PutFrame& frame) {
  std::array<std::byte, kPutFrameBytes> bytes{};
  std::span<std::byte> to(bytes);
  put_number(to, static_cast<uint8_t>(static_cast<uint8_t>(frame.kind) | frame.origin << 4));
  put_number(to, frame.inline_bytes);
  put_number(to, frame.queue);
  put_number(to, frame.epoch);
  put_number(to, frame.key);
  put_number(to, frame.bytes);
  put_number(to, frame.offset);
  put_number(to, frame.sequence);
  put_number(to, frame.turn);
  put_body(frame, to);
  return bytes;
}

PutFrame decode_put_frame(std::span<const std::byte, kPutFrameBytes> bytes) {
  std::span<const std::byte> from(bytes);
  PutFrame frame;
  const auto kind_and_origin = take_number<uint8_t>(from);
  frame.kind = static_cast<PutFrameKind>(kind_and_origin & 0xf);
  frame.origin = kind_and_origin >> 4;
  if (frame.kind < PutFrameKind::put || frame.kind > PutFrameKind::given_up)
    throw net::ProtocolError("sent a frame of no known kind");
  frame.inline_bytes = take_number<uint8_t>(from);
  frame.queue = take_number<uint16_t>(from);
  frame.epoch = take_number<uint32_t>(from);
  frame.key = take_number<MemoryKey>(from);
  frame.bytes = take_number<uint32_t>(from);
  frame.offset = take_number<uint64_t>(from);
  frame.sequence = take_number<uint32_t>(from);
  frame.turn = take_number<uint32_t>(from);
  take_body(frame, from);
  // The second comparison finds bytes that no field holds.
  if (!is_sound(frame) || !std::ranges::equal(encode(frame), bytes))
    throw net::ProtocolError("sent a frame whose fields contradict one another");
  return frame;
}

}  // namespace tokenyard
