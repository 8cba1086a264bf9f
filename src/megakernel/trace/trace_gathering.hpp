/// Gathers the traces of all ranks on every rank. A trace may exceed the size limit of a message,
/// so it goes in pieces: first every rank sends the size of its trace, so all ranks know the number
/// of rounds.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

/// Bytes per piece; well below the limit of a message.
inline constexpr size_t kTracePieceBytes = size_t{16} << 20;

/// Collective. Returns the bytes of every rank, [ranks]. `piece_bytes` is the same on all ranks.
std::vector<std::vector<std::byte>> gather_in_pieces(World& world, std::span<const std::byte> mine,
                                                     size_t piece_bytes);

/// Collective. Returns the traces of all ranks, [ranks].
std::vector<Trace> gather_traces(World& world, const Trace& mine);

}  // namespace tokenyard::megakernel
