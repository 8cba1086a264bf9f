/// Rotary embeddings of all positions, so that no task works them out: every layer of every token
/// would again.
#pragma once

#include <cstdint>
#include <vector>

namespace tokenyard::megakernel {

/// [positions][cosines, sines][dim / 2]
std::vector<float> rotary_table(uint32_t positions, uint32_t dim, float base);

}  // namespace tokenyard::megakernel
