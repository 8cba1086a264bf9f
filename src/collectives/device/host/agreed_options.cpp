#include "collectives/device/host/agreed_options.hpp"

#include <fmt/format.h>

#include <bit>
#include <random>

#include "collectives/device/host/host_links.hpp"
#include "collectives/device/host/protocol_choice.hpp"
#include "fabric/agreement.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

constexpr uint32_t kRanksMax = 1u << Signature::kRootBits;
constexpr uint32_t kSlotBytesMax = 64 << 20, kChunkBytesMax = 1 << 20;

/// Values that ranks exchange before they create an object.
struct Proposal {
  uint32_t slot_bytes, packet_bytes, chunk_bytes, ring_bytes, arena_tensors, keep_inputs;
  uint32_t on_failure;
  uint32_t unreachable;  ///< first rank that it cannot reach, or kAllReached
  Bytes16 key;           ///< of packets; all take the first rank's
};

Bytes16 key_of(const Options& options) {
  if (options.key) return std::bit_cast<Bytes16>(*options.key);
  std::random_device random;
  return {{random(), random(), random(), random()}};
}

}  // namespace

WindowLayout layout_between_hosts(const Options& options, uint32_t ranks, bool has_channels) {
  return {.ranks = ranks,
          .slots = 0,
          .packets = 0,
          .rings = {.chunk_bytes = options.chunk_bytes, .places = 0},
          .channel_places = has_channels ? channel_places(options, ranks) : 0};
}

WindowLayout layout_of(const Options& options, uint32_t ranks) {
  return {.ranks = ranks,
          .slots = options.slot_bytes / Piece8::kBytes,
          .packets = packet_bytes(options, ranks) / Piece16::kBytes,
          .rings = ring_layout(options, ranks),
          .channel_places = channel_places(options, ranks)};
}

Bytes16 agree_on_options(World& world, const Options& options) {
  require(options.slot_bytes >= Piece8::kBytes && options.slot_bytes % Piece8::kBytes == 0 &&
              options.slot_bytes <= kSlotBytesMax,
          "slot_bytes", fmt::format("a multiple of {} up to {}", Piece8::kBytes, kSlotBytesMax),
          options.slot_bytes);
  require(options.packet_bytes % Piece16::kBytes == 0 && options.packet_bytes <= kSlotBytesMax,
          "packet_bytes", fmt::format("a multiple of {} up to {}", Piece16::kBytes, kSlotBytesMax),
          options.packet_bytes);
  if (options.key == std::array<uint32_t, 4>{})
    throw InvalidArgument("key", "another key than zero, which zeros would equal", "zero");
  require(options.chunk_bytes > 0 && options.chunk_bytes % 16 == 0 &&
              options.chunk_bytes <= kChunkBytesMax,
          "chunk_bytes", fmt::format("a multiple of 16 up to {}", kChunkBytesMax),
          options.chunk_bytes);
  require(options.sms <= kBlocksMax, "sms", fmt::format("at most {}", kBlocksMax), options.sms);
  require(world.size() <= kRanksMax, "ranks", fmt::format("at most {}", kRanksMax), world.size());
  const Proposal mine{
      .slot_bytes = options.slot_bytes,
      .packet_bytes = options.packet_bytes,
      .chunk_bytes = options.chunk_bytes,
      .ring_bytes = options.ring_bytes,
      .arena_tensors = options.arena_tensors,
      .keep_inputs = options.keep_inputs,
      .on_failure = static_cast<uint32_t>(options.on_failure),
      .unreachable = spans_hosts(world) ? first_out_of_reach(world) : first_unreachable(world),
      .key = key_of(options)};
  const std::vector<Proposal> proposals = gather(world, mine, "DeviceCollectives: options");
  require_reach(world, "DeviceCollectives", proposals);
  const std::vector<uint32_t> members = present_ranks(world);
  const uint32_t lowest = members.front();
  for (const uint32_t rank : members) {
    const Proposal &first = proposals[lowest], &other = proposals[rank];
    require_equal("slot_bytes", rank, lowest, first.slot_bytes, other.slot_bytes);
    require_equal("packet_bytes", rank, lowest, first.packet_bytes, other.packet_bytes);
    require_equal("chunk_bytes", rank, lowest, first.chunk_bytes, other.chunk_bytes);
    require_equal("ring_bytes", rank, lowest, first.ring_bytes, other.ring_bytes);
    require_equal("arena_tensors", rank, lowest, first.arena_tensors, other.arena_tensors);
    require_equal("keep_inputs", rank, lowest, first.keep_inputs, other.keep_inputs);
    require_equal("on_failure", rank, lowest, first.on_failure, other.on_failure);
  }
  return proposals[lowest].key;
}

}  // namespace tokenyard::device_collectives
