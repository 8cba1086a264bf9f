#include "decoder/tiles.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace tokenyard::megakernel {
namespace {

/// Nine rows of 40 columns: two bands of two tiles, the last of which is mostly padding.
TEST(Tiles, HoldEveryElementAndZeros) {
  constexpr size_t kRows = 9;
  constexpr uint32_t kColumns = 40;
  std::vector<uint16_t> matrix(kRows * kColumns);
  std::iota(matrix.begin(), matrix.end(), uint16_t{1});
  const std::vector<uint16_t> tiles = tiled(matrix, kRows, kColumns);
  ASSERT_EQ(tiles.size(), tiled_elements(kRows, kColumns));
  ASSERT_EQ(tiles.size(), 4u * kTileElements);
  for (size_t i = 0; i < tiles.size(); ++i) {
    const size_t tile = i / kTileElements, in_tile = i % kTileElements;
    const size_t row = tile / 2 * kTileRows + in_tile / kTileColumns;
    const size_t column = tile % 2 * kTileColumns + in_tile % kTileColumns;
    const bool there = row < kRows && column < kColumns;
    EXPECT_EQ(tiles[i], there ? matrix[row * kColumns + column] : 0) << "at " << i;
  }
}

}  // namespace
}  // namespace tokenyard::megakernel
