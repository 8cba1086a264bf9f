// Frames and other bytes from a peer of a proxy. Only memory that its key opens may change.
#include <cstring>
#include <optional>

#include "fabric/proxy/peer_receiver.hpp"
#include "fuzz/fuzz.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard {
namespace {

constexpr uint32_t kPaths = 2, kQueues = 2, kEpoch = 1;
constexpr size_t kBytes = 256;  ///< of the registered memory, and of each side of it
constexpr MemoryKey kKey = 0x501;

struct Quiet final : ReceiverListener {
  void refuse(uint32_t, uint32_t queue, NetworkCheck check, const NetworkRefusal&) override {
    fuzz::require(queue < kQueues && check != NetworkCheck::none, "a refusal names its queue");
    fuzz::require(!ended[queue], "a queue ends once");
    ended[queue] = true;
  }
  void answer_settled(uint32_t, uint32_t queue, uint32_t) override {
    fuzz::require(!ended[queue], "a queue that has ended does not settle");
  }
  void refused(uint32_t, uint32_t, NetworkCheck, const NetworkRefusal&) override {}
  void settled(uint32_t, uint32_t, uint32_t) override {}
  bool ended[kQueues] = {};
};

/// Returns a frame whose fields the input chooses among those that matter.
PutFrame frame_of(fuzz::Input& input, uint32_t sequence) {
  PutFrame frame;
  frame.kind = static_cast<PutFrameKind>(1 + input.up_to(7));
  frame.queue = static_cast<uint16_t>(input.up_to(kQueues));
  frame.epoch = kEpoch;
  frame.sequence = sequence;
  frame.key = input.up_to(7) == 0 ? input.number<uint32_t>() : kKey;
  frame.offset = input.flag() ? input.up_to(255) : input.number<uint64_t>();
  switch (frame.kind) {
    case PutFrameKind::put:
      frame.bytes = input.up_to(200);
      frame.whole_offset = frame.offset - input.up_to(3);
      frame.whole_bytes = frame.bytes + input.up_to(7);
      frame.origin = static_cast<uint8_t>(input.up_to(kPaths));
      break;
    case PutFrameKind::put_inline:
      frame.inline_bytes = static_cast<uint8_t>(input.up_to(33));
      break;
    case PutFrameKind::signal:
      frame.addend = input.number<uint64_t>();
      frame.counts = {input.up_to(3), input.up_to(3)};
      break;
    case PutFrameKind::taken:
    case PutFrameKind::closed:
      frame.path = input.up_to(kPaths);
      frame.queue = 0;
      [[fallthrough]];
    default:
      frame.key = 0;
      frame.offset = 0;
      frame.turn = input.up_to(3);
      break;
  }
  return frame;
}

void run(fuzz::Input input) {
  alignas(8) std::byte memory[3 * kBytes] = {};
  RegisteredRegions regions;
  regions.open(kKey, std::span(memory).subspan(kBytes, kBytes));
  Quiet listener;
  PeerReceiver receiver({.peer = 1,
                         .epoch = kEpoch,
                         .queues = kQueues,
                         .paths = kPaths,
                         .acknowledged = input.flag()},
                        regions, listener);
  std::vector<std::byte> waiting[kPaths];
  uint32_t sequence[kPaths] = {};
  const auto deliver = [&](uint32_t path) {
    std::vector<std::byte>& bytes = waiting[path];
    for (;;) {
      size_t taken = 0;
      for (const auto& room : receiver.room(path)) {
        const size_t count = std::min(room.size(), bytes.size() - taken);
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(taken), count, room.begin());
        taken += count;
        if (count < room.size()) break;
      }
      if (taken == 0) return;
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
      receiver.received(path, taken);
      receiver.resume();
    }
  };
  try {
    while (!input.empty()) {
      const uint32_t path = input.up_to(kPaths - 1);
      std::vector<std::byte>& to = waiting[path];
      switch (input.up_to(9)) {
        case 0: {  // Anything.
          const auto bytes = input.bytes(input.up_to(80));
          to.insert(to.end(), bytes.begin(), bytes.end());
          break;
        }
        case 1:
          regions.close(region_of_key(kKey));
          receiver.withdraw(region_of_key(kKey));
          break;
        case 2:  // The path is lost, and made anew.
          receiver.reopen(path);
          sequence[path] = 0;
          to.clear();
          break;
        default: {
          const PutFrame frame = frame_of(input, sequence[path]++);
          auto header = encode(frame);
          if (input.up_to(15) == 0) header[input.up_to(63)] ^= std::byte{1};
          to.insert(to.end(), header.begin(), header.end());
          to.insert(to.end(), frame.bytes, std::byte{0x5a});
          break;
        }
      }
      deliver(path);
    }
  } catch (const net::ProtocolError&) {
    // The connection ends.
  }
  const auto untouched = [&](size_t at) {
    return std::all_of(memory + at, memory + at + kBytes,
                       [](std::byte byte) { return byte == std::byte{0}; });
  };
  fuzz::require(untouched(0) && untouched(2 * kBytes), "other memory stays as it was");
}

void run_decoder(const uint8_t* data, size_t size) {
  if (size < kPutFrameBytes) return;
  std::array<std::byte, kPutFrameBytes> bytes;
  std::memcpy(bytes.data(), data, bytes.size());
  std::optional<PutFrame> frame;
  try {
    frame = decode_put_frame(bytes);
  } catch (const net::ProtocolError&) {
    return;
  }
  fuzz::require_same_bytes(encode(*frame), bytes, "a frame reads as it was written");
}

}  // namespace
}  // namespace tokenyard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenyard::run_decoder(data, size);
  tokenyard::run({data, size});
  return 0;
}
