// Messages and landings from a peer over libfabric. Only memory that its key opens may change, and
// none of a GPU's, which the host does not reach.
#include <cstring>

#include "fuzz/fuzz.hpp"
#include "libfabric/peer_inbox.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::libfabric {
namespace {

constexpr uint32_t kQueues = 2, kCredits = 8;
constexpr size_t kBytes = 256;  ///< of the registered memory, and of each side of it
constexpr MemoryKey kKey = 0x501, kGpuKey = 0x502;

struct Quiet final : InboxListener {
  void refuse(uint32_t, uint32_t queue, NetworkCheck check, const NetworkRefusal&) override {
    fuzz::require(queue < kQueues && check != NetworkCheck::none, "a refusal names its queue");
    fuzz::require(!ended[queue], "a queue ends once");
    ended[queue] = true;
  }
  void answer_settled(uint32_t, uint32_t queue, uint32_t) override {
    fuzz::require(!ended[queue], "a queue that has ended does not settle");
  }
  void credited(uint32_t) override {
    fuzz::require(++credits <= messages, "a message is credited once");
  }
  void released(uint32_t, MemoryKey) override {}
  void take(uint32_t, const Message&) override {}
  bool ended[kQueues] = {};
  uint32_t credits = 0, messages = 0;
};

Message message_of(fuzz::Input& input, uint32_t sequence) {
  Message message;
  message.kind = static_cast<MessageKind>(1 + input.up_to(15));
  message.queue = static_cast<uint16_t>(input.up_to(kQueues));
  message.sequence = sequence + (input.up_to(3) == 0 ? input.up_to(10) : 0);
  const uint32_t key = input.up_to(7);
  message.key = key == 0 ? input.number<uint32_t>() : key == 1 ? kGpuKey : kKey;
  message.offset = input.flag() ? input.up_to(255) : input.number<uint64_t>();
  message.puts = input.up_to(3);
  message.group = input.up_to(3);
  message.turn = input.up_to(2);
  if (message.kind == MessageKind::put_inline)
    message.inline_bytes = static_cast<uint8_t>(input.up_to(33));
  message.addend = input.number<uint64_t>();
  return message;
}

void run(fuzz::Input input) {
  alignas(8) std::byte memory[3 * kBytes] = {};
  RegisteredRegions regions;
  regions.open(kKey, std::span(memory).subspan(kBytes, kBytes));
  regions.open(kGpuKey, std::span(memory).subspan(2 * kBytes, kBytes), false);
  Quiet listener;
  PeerInbox inbox({.peer = 1, .queues = kQueues, .credits = kCredits}, regions, listener);
  try {
    for (uint32_t sequence = 0; !input.empty();) {
      if (input.up_to(3) == 0) {
        inbox.landed(input.up_to(kQueues), input.up_to(3));
        continue;
      }
      auto bytes = encode(message_of(input, sequence++));
      if (input.up_to(15) == 0) bytes[input.up_to(79)] ^= std::byte{1};
      ++listener.messages;
      inbox.receive(decode_message(bytes));
    }
  } catch (const net::ProtocolError&) {
    // The peer is broken off.
  }
  const auto untouched = [&](size_t at) {
    return std::all_of(memory + at, memory + at + kBytes,
                       [](std::byte byte) { return byte == std::byte{0}; });
  };
  fuzz::require(untouched(0) && untouched(2 * kBytes), "other memory stays as it was");
}

void run_decoder(const uint8_t* data, size_t size) {
  if (size < kMessageBytes) return;
  std::array<std::byte, kMessageBytes> bytes;
  std::memcpy(bytes.data(), data, bytes.size());
  try {
    fuzz::require_same_bytes(encode(decode_message(bytes)), bytes, "a message has one encoding");
  } catch (const net::ProtocolError&) {
    // None.
  }
}

}  // namespace
}  // namespace tokenyard::libfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenyard::libfabric::run_decoder(data, size);
  tokenyard::libfabric::run({data, size});
  return 0;
}
