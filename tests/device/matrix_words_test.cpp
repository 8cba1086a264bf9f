/// Products and transposition of small matrices by a warp.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "device/accelerators.hpp"
#include "device/device_array.hpp"
#include "device/matrix_kernels.hpp"

namespace tokenyard::testing {

namespace {

class MatrixWords : public OnAccelerator {
 protected:
  /// Returns c + a * b for two products, one per warp.
  std::vector<float> products(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b,
                              const std::vector<float>& c) {
    DeviceArray<BFloat16> left(*accelerator, a), right(*accelerator, b);
    DeviceArray<float> sums(*accelerator, c);
    launch(*accelerator, products_kernel, {.blocks = 1, .warps = 2}, {},
           {.a = left.data(), .b = right.data(), .c = sums.data()});
    return sums.read();
  }
};
INSTANTIATE_ON_ACCELERATORS(MatrixWords);

BFloat16 number(float value) {
  return {static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
}
float value_of(BFloat16 number) {
  return std::bit_cast<float>(uint32_t{number.bits} << 16);
}

std::vector<BFloat16> drawn(size_t count, std::mt19937& random, bool whole) {
  std::uniform_int_distribution<int> wholes(-9, 9);
  std::normal_distribution<float> any;
  std::vector<BFloat16> numbers(count);
  for (BFloat16& one : numbers)
    one = number(whole ? static_cast<float>(wholes(random)) : any(random));
  return numbers;
}

/// Uses small integers, whose sums are exact in any order.
TEST_P(MatrixWords, AreSumsOfProducts) {
  std::mt19937 random(1);
  const auto a = drawn(2 * 256, random, true), b = drawn(2 * 128, random, true);
  std::vector<float> c(2 * 128);
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i) - 100;
  const auto found = products(a, b, c);
  for (size_t i = 0; i < c.size(); ++i) {
    const size_t product = i / 128, row = i % 128 / 8, column = i % 8;
    float expected = c[i];
    for (size_t k = 0; k < 16; ++k)
      expected +=
          value_of(a[product * 256 + row * 16 + k]) * value_of(b[product * 128 + k * 8 + column]);
    EXPECT_EQ(found[i], expected) << "row " << row << ", column " << column;
  }
}

/// The second product has the first one's rows in another order, and only one of its columns of b.
TEST_P(MatrixWords, AnElementIsThatOfItsRowAndColumnWhereverTheyStand) {
  std::mt19937 random(2);
  auto a = drawn(2 * 256, random, false), b = drawn(2 * 128, random, false);
  constexpr size_t kColumn = 3, kMoved = 6;
  for (size_t row = 0; row < 16; ++row)
    for (size_t k = 0; k < 16; ++k) a[256 + (15 - row) * 16 + k] = a[row * 16 + k];
  for (size_t k = 0; k < 16; ++k) b[128 + k * 8 + kMoved] = b[k * 8 + kColumn];
  const auto found = products(a, b, std::vector<float>(2 * 128, 0.3f));
  for (size_t row = 0; row < 16; ++row)
    EXPECT_EQ(found[row * 8 + kColumn], found[128 + (15 - row) * 8 + kMoved]) << "row " << row;
}

/// Element e of row r is 8 * r + e.
TEST_P(MatrixWords, ColumnsOfFourMatrices) {
  std::vector<Bytes16> rows(32);
  for (uint32_t row = 0; row < 32; ++row)
    for (uint32_t pair = 0; pair < 4; ++pair) {
      const uint32_t first = 8 * row + 2 * pair;
      rows[row].word[pair] = first | (first + 1) << 16;
    }
  DeviceArray<Bytes16> in(*accelerator, rows);
  DeviceArray<uint32_t> columns(*accelerator, 32 * 4);
  launch(*accelerator, transposed_kernel, {.blocks = 1, .warps = 1}, {},
         {.rows = in.data(), .columns = columns.data()});
  const auto found = columns.read();
  for (uint32_t lane = 0; lane < 32; ++lane)
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      const uint32_t upper = 8 * (8 * matrix + lane % 4 * 2) + lane / 4;
      EXPECT_EQ(found[4 * lane + matrix], upper | (upper + 8) << 16)
          << "lane " << lane << ", matrix " << matrix;
    }
}

}  // namespace

}  // namespace tokenyard::testing
