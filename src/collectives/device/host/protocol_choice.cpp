#include "collectives/device/host/protocol_choice.hpp"

#include <algorithm>

namespace tokenyard::device_collectives {

namespace {

/// Chunks of a message in rings, at least, as long as they are not smaller than kChunkBytesMin.
/// Each has a release, so more of them are slower, though fewer warps are without work at the end.
constexpr uint64_t kChunksMin = 256;
constexpr uint32_t kChunkBytesMin = 2048;
/// Steps of chunk sizes: what a warp moves with one instruction; and for chunks of tensors, what it
/// has in flight (spans_kernel.hpp) while it copies, and while it folds.
constexpr uint32_t kRow = 512, kCopyStep = 2 * kRow, kFoldStep = 8 * kRow;
/// Chunks of tensors per warp, at least: they need no release.
constexpr uint64_t kChunksAWarp = 4;
/// Bytes of all packets of one parity, unless options say otherwise.
constexpr uint32_t kPacketsBytes = 8 << 20;
/// The largest message that packets move as fast as stores from tensor to tensor do.
constexpr uint64_t kPacketsBesideDirect = 4 << 20;
/// Bytes of all rings of one parity, unless options say otherwise.
constexpr uint32_t kRingsBytes = 15 << 20;
/// Bytes of all channels, unless options say otherwise.
constexpr uint32_t kChannelsBytes = 8 << 20;

uint32_t chunk_bytes(uint64_t share, uint32_t step, uint32_t most) {
  const uint64_t steps = std::max<uint64_t>((share + step - 1) / step, 1);
  return static_cast<uint32_t>(std::min<uint64_t>(steps * step, most));
}

}  // namespace

Protocol chosen_protocol(const Movement& movement, const Options& options, uint32_t ranks) {
  if (movement.bytes() <= options.slot_bytes) return Protocol::slots;
  // Rings make an all_reduce of parts, which takes fewer bytes the more ranks there are.
  const bool sends_all = movement.reduces && !movement.input_has_parts && !movement.only_to_root;
  const uint64_t sent = movement.bytes() * (sends_all ? std::max(ranks - 1, 1u) : 1);
  const uint64_t most = packet_bytes(options, ranks);
  if (sent <= (options.arena_tensors ? std::min(most, kPacketsBesideDirect) : most))
    return Protocol::packets;
  return options.arena_tensors ? Protocol::direct : Protocol::rings;
}

uint32_t packet_bytes(const Options& options, uint32_t ranks) {
  if (options.packet_bytes != 0) return options.packet_bytes;
  return kPacketsBytes / std::max(ranks - 1, 1u) / Piece16::kBytes * Piece16::kBytes;
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

uint32_t ring_chunk_bytes(uint64_t bytes, uint32_t most) {
  return chunk_bytes(std::max<uint64_t>(bytes / kChunksMin, kChunkBytesMin), kRow, most);
}

uint32_t direct_chunk_bytes(uint64_t bytes, bool folds, uint32_t warps, uint32_t most) {
  return chunk_bytes(bytes / (kChunksAWarp * warps), folds ? kFoldStep : kCopyStep, most);
}

}  // namespace tokenyard::device_collectives
