#include "collectives/device/host/protocol_choice.hpp"

#include <algorithm>

namespace tokenyard::device_collectives {

namespace {

/// Chunks of a message, at least, as long as they are not smaller than kChunkBytesMin.
constexpr uint64_t kChunksMin = 256;
constexpr uint32_t kChunkBytesMin = 2048;
/// Step of chunk sizes: what a warp moves with one instruction.
constexpr uint64_t kChunkStep = 512;
/// Bytes of all rings of one parity, unless options say otherwise.
constexpr uint32_t kRingsBytes = 16 << 20;
/// Bytes of all channels, unless options say otherwise.
constexpr uint32_t kChannelsBytes = 8 << 20;

}  // namespace

Protocol chosen_protocol(const Movement& movement, const Options& options) {
  if (movement.bytes() <= options.slot_bytes) return Protocol::slots;
  // Direct reductions pull, and so wait for the link's latency: of 64 MB, twice as long as rings.
  return options.arena_tensors && !movement.reduces ? Protocol::direct : Protocol::rings;
}

RingLayout ring_layout(const Options& options, uint32_t ranks) {
  const uint32_t bytes =
      options.ring_bytes != 0 ? options.ring_bytes : kRingsBytes / std::max(ranks - 1, 1u);
  return {.chunk_bytes = options.chunk_bytes, .places = std::max(bytes / options.chunk_bytes, 1u)};
}

uint32_t channel_places(const Options& options, uint32_t ranks) {
  const uint32_t bytes =
      options.ring_bytes != 0 ? options.ring_bytes : kChannelsBytes / std::max(ranks - 1, 1u);
  return std::max(bytes / options.chunk_bytes, 1u);
}

uint32_t chunk_bytes_for(uint64_t bytes, uint32_t most) {
  const uint64_t share = (bytes / kChunksMin + kChunkStep - 1) / kChunkStep * kChunkStep;
  const uint32_t least = std::min(kChunkBytesMin, most);
  return static_cast<uint32_t>(std::clamp<uint64_t>(share, least, most));
}

}  // namespace tokenyard::device_collectives
