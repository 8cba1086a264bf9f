#include "collectives/algorithms/reduce.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "collectives/algorithms/short_float.hpp"

namespace tokenyard::collectives::testing {
namespace {

TEST(ShortFloat, EveryFloat16SurvivesTheWayThere) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half = {static_cast<uint16_t>(bits)};
    const float wide = half.wide();
    if (std::isnan(wide)) {
      EXPECT_EQ(bits & 0x7c00, 0x7c00u);
      EXPECT_TRUE(std::isnan(Float16::rounded(wide).wide()));
      continue;
    }
    const int exponent = static_cast<int>(bits >> 10 & 31),
              mantissa = static_cast<int>(bits & 1023);
    const double expected = exponent == 31  ? std::numeric_limits<double>::infinity()
                            : exponent == 0 ? std::ldexp(mantissa, -24)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(wide, static_cast<float>((bits & 0x8000) != 0 ? -expected : expected)) << bits;
    ASSERT_EQ(Float16::rounded(wide).bits, bits);
  }
}

/// Rounds to the nearest, ties to even, by trying both neighbours.
template <typename Short>
void expect_nearest(float value) {
  const Short rounded = Short::rounded(value);
  const double distance = std::abs(static_cast<double>(rounded.wide()) - value);
  for (const int step : {-1, 1}) {
    const Short other = {static_cast<uint16_t>(rounded.bits + step)};
    if (!std::isfinite(other.wide()) || std::signbit(other.wide()) != std::signbit(value)) continue;
    const double other_distance = std::abs(static_cast<double>(other.wide()) - value);
    ASSERT_LE(distance, other_distance) << value;
    if (distance == other_distance) {
      ASSERT_EQ(rounded.bits % 2, 0) << value;
    }
  }
}

TEST(ShortFloat, RoundingIsToTheNearest) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::ldexp(static_cast<float>(random() % 4096) / 4096 - 0.5f,
                                   static_cast<int>(random() % 34) - 20);
    expect_nearest<Float16>(value);
    expect_nearest<BFloat16>(value);
  }
  EXPECT_EQ(Float16::rounded(65519.f).bits, 0x7bff);
  EXPECT_EQ(Float16::rounded(65520.f).bits, 0x7c00);
  EXPECT_EQ(Float16::rounded(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_EQ(BFloat16::rounded(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(BFloat16::rounded(std::numeric_limits<float>::quiet_NaN()).wide()));
}

template <typename T>
T combined(DataType type, ReduceOp op, T first, T second) {
  T result;
  combine_of(type, op)(&result, &first, &second, 1);
  return result;
}

TEST(Reduce, KeepsSignsAndWrapsAround) {
  EXPECT_EQ(combined<int8_t>(DataType::int8, ReduceOp::min, -3, 2), -3);
  EXPECT_EQ(combined<uint8_t>(DataType::uint8, ReduceOp::min, 253, 2), 2);
  EXPECT_EQ(combined<int64_t>(DataType::int64, ReduceOp::max, -3, -7), -3);
  EXPECT_EQ(
      combined<int32_t>(DataType::int32, ReduceOp::sum, std::numeric_limits<int32_t>::max(), 1),
      std::numeric_limits<int32_t>::min());
  EXPECT_EQ(combined<uint16_t>(DataType::uint16, ReduceOp::product, 65535, 65535), 1);
  EXPECT_EQ(combined<int16_t>(DataType::int16, ReduceOp::bit_xor, 0x0ff0, 0x00ff), 0x0f0f);
}

TEST(Reduce, ANanOnEitherSideStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::sum, ReduceOp::product}) {
    EXPECT_TRUE(std::isnan(combined<double>(DataType::float64, op, nan, 1)));
    EXPECT_TRUE(std::isnan(combined<double>(DataType::float64, op, 1, nan)));
  }
}

TEST(Reduce, BooleansAreTrueOrFalse) {
  EXPECT_EQ(combined<uint8_t>(DataType::boolean, ReduceOp::sum, 1, 1), 1);
  EXPECT_EQ(combined<uint8_t>(DataType::boolean, ReduceOp::product, 2, 1), 1);
  EXPECT_EQ(combined<uint8_t>(DataType::boolean, ReduceOp::max, 0, 1), 1);
  EXPECT_EQ(combined<uint8_t>(DataType::boolean, ReduceOp::bit_xor, 1, 1), 0);
}

TEST(Reduce, ComplexNumbersMultiply) {
  const float first[2] = {1, 2}, second[2] = {3, -1};
  float result[2];
  combine_of(DataType::complex64, ReduceOp::product)(result, first, second, 1);
  EXPECT_THAT(result, ::testing::ElementsAre(5, 5));
}

TEST(Reduce, WhatMakesNoSenseIsRefused) {
  EXPECT_THROW(check_reducible(DataType::int32, ReduceOp::average), InvalidArgument);
  EXPECT_THROW(check_reducible(DataType::boolean, ReduceOp::average), InvalidArgument);
  EXPECT_THROW(check_reducible(DataType::float32, ReduceOp::bit_or), InvalidArgument);
  EXPECT_THROW(check_reducible(DataType::complex64, ReduceOp::max), InvalidArgument);
  EXPECT_NO_THROW(check_reducible(DataType::bfloat16, ReduceOp::average));
}

TEST(Reduce, ElementsMayLieAnywhere) {
  std::vector<std::byte> memory(3 * 1024);
  for (const size_t shift : {size_t{1}, size_t{3}, size_t{7}}) {
    std::vector<double> one(50), other(50), result(50);
    for (size_t i = 0; i < 50; ++i) one[i] = static_cast<double>(i), other[i] = 100;
    std::byte* first = memory.data() + shift;
    std::byte* second = memory.data() + 1024 + shift;
    std::byte* into = memory.data() + 2048 + shift;
    std::memcpy(first, one.data(), 400);
    std::memcpy(second, other.data(), 400);
    combine_of(DataType::float64, ReduceOp::sum)(into, first, second, 50);
    std::memcpy(result.data(), into, 400);
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(result[i], 100 + static_cast<double>(i));
  }
}

}  // namespace
}  // namespace tokenyard::collectives::testing
