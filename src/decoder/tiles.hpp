/// How a matrix of weights lies in memory, so that tensor cores can have it as it comes: in tiles
/// of 8 rows and 32 columns, a row of tiles (a band) after the other, and a tile by rows. What is
/// missing to whole tiles are zeros.
///
///     [rows / 8][columns / 32][8][32]
///
/// A lane of a warp that reads a tile takes sixteen bytes, and neighbours take neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/macros.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kTileRows = 8, kTileColumns = 32;
inline constexpr uint32_t kTileElements = kTileRows * kTileColumns;
inline constexpr uint32_t kTileBytes = 2 * kTileElements;  ///< of BF16

/// Of a band.
HOST_DEVICE constexpr uint32_t tiles_of(uint32_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns;
}
HOST_DEVICE constexpr uint32_t bands_of(uint32_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
/// What a matrix takes.
constexpr size_t tiled_elements(size_t rows, uint32_t columns) {
  return (rows + kTileRows - 1) / kTileRows * tiles_of(columns) * kTileElements;
}

/// `matrix`: [rows][columns] BF16.
std::vector<uint16_t> tiled(std::span<const uint16_t> matrix, size_t rows, uint32_t columns);

}  // namespace tokenyard::megakernel
