/// Layout of a weight matrix in memory that tensor cores can use without rearrangement: tiles of 8
/// rows and 32 columns. A row of tiles is a band; bands follow one another, and each tile is stored
/// by rows. Incomplete tiles are padded with zeros.
///
///     [rows / 8][columns / 32][8][32]
///
/// A lane of a warp that reads a tile loads sixteen bytes, and neighbouring lanes load neighbouring
/// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/macros.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kTileRows = 8, kTileColumns = 32;
inline constexpr uint32_t kTileElements = kTileRows * kTileColumns;
inline constexpr uint32_t kTileBytes = 2 * kTileElements;  ///< in BF16

/// Returns the tiles per band.
TOKENYARD_HOST_DEVICE constexpr uint32_t tiles_of(uint32_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns;
}
TOKENYARD_HOST_DEVICE constexpr uint32_t bands_of(uint32_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
/// Returns the elements of a tiled matrix, padding included.
constexpr size_t tiled_elements(size_t rows, uint32_t columns) {
  return (rows + kTileRows - 1) / kTileRows * tiles_of(columns) * kTileElements;
}

/// Returns the tiled form of `matrix`, [rows][columns] BF16.
std::vector<uint16_t> tiled(std::span<const uint16_t> matrix, size_t rows, uint32_t columns);

}  // namespace tokenyard::megakernel
