#include "decoder/tiles.hpp"

#include <algorithm>

namespace tokenyard::megakernel {

std::vector<uint16_t> tiled(std::span<const uint16_t> matrix, size_t rows, uint32_t columns) {
  std::vector<uint16_t> tiles(tiled_elements(rows, columns));
  const size_t band_elements = size_t{tiles_of(columns)} * kTileElements;
  for (size_t row = 0; row < rows; ++row) {
    const uint16_t* const from = matrix.data() + row * columns;
    uint16_t* const band = tiles.data() + row / kTileRows * band_elements;
    for (uint32_t column = 0; column < columns; column += kTileColumns)
      std::copy_n(from + column, std::min(kTileColumns, columns - column),
                  band + column / kTileColumns * kTileElements + row % kTileRows * kTileColumns);
  }
  return tiles;
}

}  // namespace tokenyard::megakernel
