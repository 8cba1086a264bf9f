#include "megakernel/trace_gathering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "megakernel/trace_codec.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// From `begin` on, as much as a piece has; nothing after the end.
std::span<const std::byte> piece_of(std::span<const std::byte> bytes, size_t begin, size_t size) {
  const size_t from = std::min(begin, bytes.size());
  return bytes.subspan(from, std::min(size, bytes.size() - from));
}

std::vector<uint64_t> gather_sizes(World& world, uint64_t mine) {
  std::vector<uint64_t> sizes;
  for (const auto& theirs :
       world.all_gather(std::as_bytes(std::span(&mine, 1)), "megakernel: sizes of traces")) {
    if (theirs.size() != sizeof(uint64_t))
      throw InternalError(fmt::format("the size of a trace: expected {} bytes, got {}",
                                      sizeof(uint64_t), theirs.size()));
    std::memcpy(&sizes.emplace_back(), theirs.data(), sizeof(uint64_t));
  }
  return sizes;
}

}  // namespace

std::vector<std::vector<std::byte>> gather_in_pieces(World& world, std::span<const std::byte> mine,
                                                     size_t piece_bytes) {
  const std::vector<uint64_t> sizes = gather_sizes(world, mine.size());
  std::vector<std::vector<std::byte>> all(world.size());
  for (size_t begin = 0; begin < std::ranges::max(sizes); begin += piece_bytes) {
    const auto pieces =
        world.all_gather(piece_of(mine, begin, piece_bytes), "megakernel: a piece of a trace");
    for (uint32_t rank = 0; rank < all.size(); ++rank)
      all[rank].insert(all[rank].end(), pieces[rank].begin(), pieces[rank].end());
  }
  return all;
}

std::vector<Trace> gather_traces(World& world, const Trace& mine) {
  std::vector<Trace> traces;
  for (const auto& bytes : gather_in_pieces(world, TraceCodec::encode(mine), kTracePieceBytes)) {
    traces.push_back(TraceCodec::decode(bytes));
    const uint32_t rank = static_cast<uint32_t>(traces.size() - 1);
    if (traces.back().rank != rank)
      throw InternalError(
          fmt::format("a trace of rank {}: expected one of rank {}", traces.back().rank, rank));
  }
  return traces;
}

}  // namespace tokenyard::megakernel
