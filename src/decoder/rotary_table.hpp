/// Rotary embeddings of all positions, computed once; otherwise every layer would compute them for
/// every token.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder/decoder_shape.hpp"

namespace tokenyard::megakernel {

/// Returns [positions_max][cosines, sines][head_dim / 2].
std::vector<float> rotary_table(const DecoderShape& shape);

}  // namespace tokenyard::megakernel
