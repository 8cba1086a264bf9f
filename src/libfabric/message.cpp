#include "libfabric/message.hpp"

#include <algorithm>

#include "base/little_endian.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::libfabric {

std::array<std::byte, kMessageBytes> encode(const Message& message) {
  std::array<std::byte, kMessageBytes> bytes{};
  std::span<std::byte> to(bytes);
  put_number(to, message.token);
  put_number(to, message.kind);
  put_number(to, message.inline_bytes);
  put_number(to, message.queue);
  put_number(to, message.rank);
  put_number(to, message.sequence);
  put_number(to, message.credits);
  put_number(to, message.credits_for_credits);
  put_number(to, message.key);
  put_number(to, message.turn);
  put_number(to, message.offset);
  put_number(to, message.puts);
  put_number(to, message.group);
  switch (message.kind) {
    case MessageKind::put_inline:
      std::ranges::copy_n(message.inlined.begin(),
                          std::min<uint32_t>(message.inline_bytes, kNetworkInlineMax), to.begin());
      break;
    case MessageKind::signal:
      put_number(to, message.addend);
      break;
    case MessageKind::region:
      put_number(to, message.base);
      put_number(to, message.bytes);
      put_number(to, message.provider_key);
      break;
    case MessageKind::refusal:
      put_number(to, message.check);
      put_number(to, message.refusal.region);
      put_number(to, message.refusal.expected);
      put_number(to, message.refusal.seen);
      break;
    default:
      break;
  }
  return bytes;
}

Message decode_message(std::span<const std::byte, kMessageBytes> bytes) {
  std::span<const std::byte> from(bytes);
  Message message;
  message.token = take_number<uint64_t>(from);
  message.kind = take_number<MessageKind>(from);
  if (message.kind < MessageKind::hello || message.kind > MessageKind::given_up)
    throw net::ProtocolError("sent a message of no known kind");
  message.inline_bytes = take_number<uint8_t>(from);
  message.queue = take_number<uint16_t>(from);
  message.rank = take_number<uint32_t>(from);
  message.sequence = take_number<uint32_t>(from);
  message.credits = take_number<uint16_t>(from);
  message.credits_for_credits = take_number<uint16_t>(from);
  message.key = take_number<MemoryKey>(from);
  message.turn = take_number<uint32_t>(from);
  message.offset = take_number<uint64_t>(from);
  message.puts = take_number<uint32_t>(from);
  message.group = take_number<uint32_t>(from);
  bool sound =
      message.group < kGroups &&
      message.inline_bytes <= (message.kind == MessageKind::put_inline ? kNetworkInlineMax : 0);
  switch (message.kind) {
    case MessageKind::put_inline:
      std::ranges::copy(from.first(kNetworkInlineMax), message.inlined.begin());
      break;
    case MessageKind::signal:
      message.addend = take_number<uint64_t>(from);
      break;
    case MessageKind::region:
      message.base = take_number<uint64_t>(from);
      message.bytes = take_number<uint64_t>(from);
      message.provider_key = take_number<uint64_t>(from);
      break;
    case MessageKind::refusal:
      message.check = take_number<NetworkCheck>(from);
      message.refusal.region = take_number<uint32_t>(from);
      message.refusal.expected = take_number<uint64_t>(from);
      message.refusal.seen = take_number<uint64_t>(from);
      sound = sound && message.check > NetworkCheck::none && message.check <= kLastNetworkCheck;
      break;
    default:
      break;
  }
  // The second comparison finds bytes that no field holds.
  if (!sound || !std::ranges::equal(encode(message), bytes))
    throw net::ProtocolError("sent a message whose fields contradict one another");
  return message;
}

}  // namespace tokenyard::libfabric
