/// Rotary embeddings of all positions, so that no task works them out: every layer of every token
/// would again.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder/decoder_shape.hpp"

namespace tokenyard::megakernel {

/// [positions_max][cosines, sines][head_dim / 2]
std::vector<float> rotary_table(const DecoderShape& shape);

}  // namespace tokenyard::megakernel
