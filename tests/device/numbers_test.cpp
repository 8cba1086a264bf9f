/// Small formats: the same bits on every accelerator, and the right ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "device/accelerators.hpp"
#include "device/device_array.hpp"
#include "device/number_kernels.hpp"

namespace tokenyard::testing {

namespace {

class NumberWords : public OnAccelerator {};
INSTANTIATE_ON_ACCELERATORS(NumberWords);

TEST_P(NumberWords, NumbersAreMadeAlikeEverywhere) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    // Every sign, exponent and upper mantissa, exactly and just beside the ties of each format.
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  }
  const auto count = static_cast<uint32_t>(values.size());
  DeviceArray<float> in(*accelerator, values), back(*accelerator, 5 * values.size());
  DeviceArray<Numbers> made(*accelerator, values.size());
  launch(*accelerator, numbers_kernel, {.blocks = 2, .warps = 1}, {},
         {.count = count, .values = in.data(), .made = made.data(), .back = back.data()});
  const auto numbers = made.read();
  const auto floats = back.read();
  const auto bits = [](float value) {
    return std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
  };
  for (uint32_t i = 0; i < count; ++i) {
    const Numbers expected = numbers_of(values[i]);
    SCOPED_TRACE(::testing::Message() << std::hexfloat << values[i]);
    ASSERT_EQ(numbers[i].bf16, expected.bf16);
    ASSERT_EQ(numbers[i].bf16_pair, expected.bf16_pair);
    ASSERT_EQ(numbers[i].fp16_pair, expected.fp16_pair);
    ASSERT_EQ(numbers[i].e4m3, expected.e4m3);
    ASSERT_EQ(numbers[i].e5m2, expected.e5m2);
    ASSERT_EQ(numbers[i].e4m3_quad, expected.e4m3_quad);
    if (values[i] > 0 && std::isfinite(values[i])) {  // Scales are defined for no other values.
      ASSERT_EQ(numbers[i].e8m0, expected.e8m0);
    }
    ASSERT_EQ(bits(floats[5 * i]), bits(to_float(BFloat16{expected.bf16})));
    ASSERT_EQ(bits(floats[5 * i + 1]), bits(to_float(Float8E4M3{expected.e4m3})));
    ASSERT_EQ(bits(floats[5 * i + 2]), bits(to_float(Float8E5M2{expected.e5m2})));
    ASSERT_EQ(bits(floats[5 * i + 3]), bits(to_float(ScaleE8M0{numbers[i].e8m0})));
    ASSERT_EQ(bits(floats[5 * i + 4]),
              bits(to_float(Float16{static_cast<uint16_t>(expected.fp16_pair)})));
  }
}

// The tests below check the host's conversions against a search for the nearest of all codes. The
// kernel above shows that a GPU's are the same.

/// Returns the code with the nearest value, and the even one in a tie. `decode` returns NaN for
/// codes that are no finite number.
template <class Decode>
uint8_t nearest(float value, Decode decode) {
  const double size = std::fabs(static_cast<double>(value));
  uint8_t best = 0;
  double best_distance = INFINITY;
  for (uint32_t code = 0; code < 0x80; ++code) {
    const double distance = std::fabs(decode(static_cast<uint8_t>(code)) - size);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = static_cast<uint8_t>(code);
      best_distance = distance;
    }
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

/// Decode exponent and fraction as the formats define them, in double.
double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return NAN;
  return exponent ? (1 + fraction / 8.0) * std::pow(2.0, exponent - 7) : fraction / 8.0 / 64;
}
double e5m2(uint8_t code) {
  const int exponent = code >> 2 & 31, fraction = code & 3;
  if (exponent == 31) return NAN;
  return exponent ? (1 + fraction / 4.0) * std::pow(2.0, exponent - 15) : fraction / 4.0 / 16384;
}

TEST(Numbers, EveryFloat8CodeHasTheValueOfItsDefinition) {
  for (uint32_t code = 0; code < 0x80; ++code) {
    const auto byte = static_cast<uint8_t>(code), negative = static_cast<uint8_t>(code | 0x80);
    if (!std::isnan(e4m3(byte))) {
      EXPECT_EQ(to_float(Float8E4M3{byte}), e4m3(byte));
      EXPECT_EQ(to_float(Float8E4M3{negative}), -e4m3(byte));
    }
    if (!std::isnan(e5m2(byte))) {
      EXPECT_EQ(to_float(Float8E5M2{byte}), e5m2(byte));
      EXPECT_EQ(to_float(Float8E5M2{negative}), -e5m2(byte));
    }
  }
  EXPECT_TRUE(std::isnan(to_float(Float8E4M3{0x7f})));
  EXPECT_TRUE(std::isnan(to_float(Float8E4M3{0xff})));
  EXPECT_EQ(to_float(Float8E5M2{0x7c}), INFINITY);
  EXPECT_EQ(to_float(Float8E5M2{0xfc}), -INFINITY);
  EXPECT_TRUE(std::isnan(to_float(Float8E5M2{0x7d})));
}

TEST(Numbers, Float8IsTheNearestCodeAndTheEvenOneOfTwo) {
  // Every upper half of a float, and its neighbours: all ties of both formats are among them.
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t bits : {high << 16, high << 16 | 1, (high << 16) - 1}) {
      const float value = std::bit_cast<float>(bits);
      if (std::isnan(value)) {
        ASSERT_EQ(to_float8_e4m3(value).bits, 0x7f);
        ASSERT_EQ(to_float8_e5m2(value).bits, 0x7f);
        continue;
      }
      // Conversions saturate beyond the largest code, which is then also the nearest one, as long
      // as doubles distinguish the distances.
      const float finite = std::clamp(value, -1e6f, 1e6f);
      ASSERT_EQ(to_float8_e4m3(value).bits, nearest(finite, e4m3)) << std::hexfloat << value;
      ASSERT_EQ(to_float8_e5m2(value).bits, nearest(finite, e5m2)) << std::hexfloat << value;
    }
  }
}

/// Decodes exponent and fraction as the format defines them, in double.
double fp16(uint32_t code) {
  const int exponent = static_cast<int>(code >> 10 & 31), fraction = static_cast<int>(code & 1023);
  return exponent ? (1 + fraction / 1024.0) * std::pow(2.0, exponent - 15)
                  : fraction * std::pow(2.0, -24);
}

TEST(Numbers, Float16IsTheNearerOfItsNeighboursAndTheEvenOneOfTwo) {
  const auto of = [](double value) {
    return to_float16_pair(static_cast<float>(value), 0) & 0xffff;
  };
  for (uint32_t code = 0; code < 0x7c00; ++code) {
    const double here = fp16(code), next = code == 0x7bff ? 65536 : fp16(code + 1);
    ASSERT_EQ(to_float(Float16{static_cast<uint16_t>(code)}), here);
    ASSERT_EQ(to_float(Float16{static_cast<uint16_t>(code | 0x8000)}), -here);
    // Quarters of the distance are exact in fp32.
    ASSERT_EQ(of(here), code);
    ASSERT_EQ(of(here + (next - here) / 4), code);
    ASSERT_EQ(of(here + (next - here) / 2), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(of(here + (next - here) * 3 / 4), code + 1);
    ASSERT_EQ(of(-(here + (next - here) * 3 / 4)), (code + 1) | 0x8000);
  }
  EXPECT_EQ(of(INFINITY), 0x7c00u);
  EXPECT_EQ(of(-INFINITY), 0xfc00u);
  EXPECT_EQ(of(NAN), 0x7fffu);
  EXPECT_EQ(to_float(Float16{0x7c00}), INFINITY);
  EXPECT_TRUE(std::isnan(to_float(Float16{0x7e00})));
}

TEST(Numbers, Bfloat16IsTheNearerOfItsNeighboursAndTheEvenOneOfTwo) {
  for (uint32_t high = 0; high < 0x7f80; ++high) {
    const auto at = [&](uint32_t low) {
      return to_bfloat16(std::bit_cast<float>(high << 16 | low));
    };
    for (const uint32_t low : {0u, 1u, 0x7fffu}) ASSERT_EQ(at(low).bits, high);
    for (const uint32_t low : {0x8001u, 0xffffu}) ASSERT_EQ(at(low).bits, high + 1);
    ASSERT_EQ(at(0x8000).bits, high % 2 == 0 ? high : high + 1);
    const float negative = -std::bit_cast<float>(high << 16 | 0x8001);
    ASSERT_EQ(to_bfloat16(negative).bits, (high + 1) | 0x8000);
    ASSERT_EQ(to_float(BFloat16{static_cast<uint16_t>(high)}), std::bit_cast<float>(high << 16));
  }
  EXPECT_EQ(to_bfloat16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-INFINITY).bits, 0xff80);
  EXPECT_EQ(to_bfloat16(NAN).bits, 0x7fff);
  EXPECT_EQ(to_bfloat16(-NAN).bits, 0x7fff);
  EXPECT_EQ(to_bfloat16_pair(1.0f, -2.0f), 0xc0003f80);
}

TEST(Numbers, AScaleIsTheSmallestPowerOfTwoNotBelow) {
  for (int exponent = -126; exponent <= 126; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(to_scale_e8m0(power).bits, exponent + 127);
    EXPECT_EQ(to_scale_e8m0(std::nextafter(power, INFINITY)).bits, exponent + 128);
    EXPECT_EQ(to_float(ScaleE8M0{static_cast<uint8_t>(exponent + 127)}), power);
  }
  EXPECT_EQ(to_scale_e8m0(std::ldexp(1.0f, -127)).bits, 0);
  EXPECT_EQ(to_scale_e8m0(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_scale_e8m0(std::numeric_limits<float>::max()).bits, 0xfe);
  EXPECT_EQ(to_float(ScaleE8M0{0}), std::ldexp(1.0f, -127));
  EXPECT_TRUE(std::isnan(to_float(ScaleE8M0{0xff})));
}

TEST(Numbers, FourAtOnceAreTheFourInTheirOrder) {
  EXPECT_EQ(to_float8_e4m3_quad(1, -2, 0, 448), 0x7e00c038u);
}

}  // namespace

}  // namespace tokenyard::testing
