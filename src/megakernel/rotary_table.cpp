#include "megakernel/rotary_table.hpp"

#include <cmath>

namespace tokenyard::megakernel {

std::vector<float> rotary_table(uint32_t positions, uint32_t dim, float base) {
  const uint32_t half = dim / 2;
  std::vector<float> table(size_t{positions} * dim);
  for (uint32_t i = 0; i < half; ++i) {
    const double frequency = std::pow(static_cast<double>(base), -static_cast<double>(i) / half);
    for (uint32_t position = 0; position < positions; ++position) {
      float* const row = table.data() + size_t{position} * dim;
      row[i] = static_cast<float>(std::cos(position * frequency));
      row[half + i] = static_cast<float>(std::sin(position * frequency));
    }
  }
  return table;
}

}  // namespace tokenyard::megakernel
