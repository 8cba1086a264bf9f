#include "megakernel/trace/trace_gathering.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fabric/gather.hpp"
#include "megakernel/trace/trace_codec.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Returns the piece that starts at `begin`; empty past the end.
std::span<const std::byte> piece_of(std::span<const std::byte> bytes, size_t begin, size_t size) {
  const size_t from = std::min(begin, bytes.size());
  return bytes.subspan(from, std::min(size, bytes.size() - from));
}

}  // namespace

std::vector<std::vector<std::byte>> gather_in_pieces(World& world, std::span<const std::byte> mine,
                                                     size_t piece_bytes) {
  const auto sizes = gather(world, uint64_t{mine.size()}, "megakernel: sizes of traces");
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
    const auto rank = static_cast<uint32_t>(traces.size());
    traces.push_back(TraceCodec::decode(bytes, rank));
    if (traces.back().rank != rank)
      throw InternalError(fmt::format("expected a trace of rank {1}, got one of rank {0}",
                                      traces.back().rank, rank));
  }
  return traces;
}

}  // namespace tokenyard::megakernel
