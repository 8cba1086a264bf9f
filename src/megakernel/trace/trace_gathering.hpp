/// Traces of all ranks on every rank. They may be larger than a message may be, so they go in
/// pieces: first every rank tells how many bytes its trace has, so all know how many rounds follow.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

/// Well below what a message may have.
inline constexpr size_t kTracePieceBytes = size_t{16} << 20;

/// Collective: [ranks] what each brings. `piece_bytes` is the same on all ranks.
std::vector<std::vector<std::byte>> gather_in_pieces(World& world, std::span<const std::byte> mine,
                                                     size_t piece_bytes);

/// Collective: [ranks].
std::vector<Trace> gather_traces(World& world, const Trace& mine);

}  // namespace tokenyard::megakernel
