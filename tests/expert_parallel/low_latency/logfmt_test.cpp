/// The ten-bit logarithmic code by itself.
#include <gtest/gtest.h>

#include <random>

#include "expert_parallel/low_latency/kernels/logfmt.hpp"

namespace tokenyard::low_latency {
namespace {

LogScale scale_of(const std::vector<float>& values) {
  LogRange range;
  for (const float value : values) range.include(value);
  return LogScale::of(range);
}

TEST(LogFmt, ErrsByHalfAStepAtMost) {
  std::mt19937 random(1);
  for (const float octaves : {0.0f, 1.0f, 20.0f, 31.0f}) {
    std::uniform_real_distribution<float> exponent(-octaves, 0);
    std::vector<float> values;
    for (uint32_t i = 0; i < 128; ++i)
      values.push_back((random() % 2 == 0 ? 3 : -3) * std::exp2(exponent(random)));
    const LogScale scale = scale_of(values);
    const float most = std::exp2(scale.step / 2) - 1 + 1e-5f;
    EXPECT_LE(most, 0.0221f);
    for (const float value : values) {
      const uint32_t code = scale.encode(value);
      EXPECT_LT(code, kLogFmtMask);
      EXPECT_NEAR(scale.decode(code), value, most * std::fabs(value));
    }
  }
}

TEST(LogFmt, KeepsZeroAndDropsWhatIsFarSmaller) {
  const std::vector<float> values = {0.0f, 1.0f, 1e-20f, -0.5f};
  const LogScale scale = scale_of(values);
  EXPECT_EQ(scale.decode(scale.encode(0.0f)), 0);
  EXPECT_EQ(scale.decode(scale.encode(1e-20f)), 0);
  // Error of a power in float; then of rounding to BF16.
  EXPECT_NEAR(scale.decode(scale.encode(1.0f)), 1, 2e-6f);
  EXPECT_NEAR(scale.decode(scale.encode(-0.5f)), -0.5f, 0.011f);
  EXPECT_EQ(scale_of({0, 0}).decode(scale_of({0, 0}).encode(0)), 0);
}

TEST(LogFmt, OneThatIsNoNumberMakesItsGroupNone) {
  for (const float broken : {NAN, INFINITY, -INFINITY}) {
    const LogScale scale = scale_of({1.0f, broken});
    EXPECT_TRUE(std::isnan(scale.decode(scale.encode(1.0f))));
    EXPECT_NE(std::bit_cast<uint32_t>(scale.low), 0xffffffffu);
  }
}

/// Empty staging is all ones, so no word of codes may be.
TEST(LogFmt, NoCodeIsAllOnes) {
  for (uint32_t sign : {0u, kLogFmtSign}) EXPECT_NE(sign | kLogFmtPlaces, kLogFmtMask);
  const LogScale scale = scale_of({1e-3f, 1e3f});
  EXPECT_EQ(scale.encode(-1e3f), kLogFmtSign | kLogFmtPlaces);
}

}  // namespace
}  // namespace tokenyard::low_latency
