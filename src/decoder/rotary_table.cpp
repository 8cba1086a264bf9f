#include "decoder/rotary_table.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tokenyard::megakernel {

namespace {

/// Returns the scaled frequency. Frequencies with few turns within the training positions are
/// divided by the factor, those with many are kept, and those in between are interpolated.
double scaled(double frequency, const RopeScaling& scaling) {
  if (scaling.positions == 0) return frequency;
  const double turns = scaling.positions * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / scaling.factor);
}

}  // namespace

std::vector<float> rotary_table(const DecoderShape& shape) {
  const uint32_t half = shape.head_dim / 2;
  std::vector<float> table(size_t{shape.positions_max} * shape.head_dim);
  for (uint32_t i = 0; i < half; ++i) {
    const double plain =
        std::pow(static_cast<double>(shape.rope_base), -static_cast<double>(i) / half);
    const double frequency = scaled(plain, shape.rope_scaling);
    for (uint32_t position = 0; position < shape.positions_max; ++position) {
      float* const row = table.data() + size_t{position} * shape.head_dim;
      row[i] = static_cast<float>(std::cos(position * frequency));
      row[half + i] = static_cast<float>(std::sin(position * frequency));
    }
  }
  return table;
}

}  // namespace tokenyard::megakernel
