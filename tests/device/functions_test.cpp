/// Elementary functions: near the true value on every accelerator, though not bit for bit equal.
#include <gtest/gtest.h>

#include <cmath>

#include "device/accelerators.hpp"
#include "device/device_array.hpp"
#include "device/function_kernels.hpp"

namespace tokenyard::testing {

namespace {

class FunctionWords : public OnAccelerator {};
INSTANTIATE_ON_ACCELERATORS(FunctionWords);

/// Allows a few units in the last place, or of the smallest normal number.
void expect_near(float found, double expected) {
  EXPECT_NEAR(found, expected, 8 * std::ldexp(std::abs(expected), -23) + 1e-37);
}

TEST_P(FunctionWords, AreNearTheTrueValue) {
  std::vector<float> values;
  for (float x = -20; x < 20; x += 0.37f) values.push_back(x);
  for (const float x : {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 3e6f, 1e-3f}) values.push_back(x);
  const auto count = static_cast<uint32_t>(values.size());
  DeviceArray<float> in(*accelerator, values);
  DeviceArray<Functions> found(*accelerator, values.size());
  launch(*accelerator, functions_kernel, {.blocks = 1, .warps = 1}, {},
         {.count = count, .values = in.data(), .found = found.data()});
  const auto functions = found.read();
  for (uint32_t i = 0; i < count; ++i) {
    const double x = values[i];
    SCOPED_TRACE(x);
    EXPECT_EQ(functions[i].nearest, std::llrint(x));
    expect_near(functions[i].reciprocal_square_root, 1 / std::sqrt(std::abs(x)));
    EXPECT_NEAR(functions[i].sine, std::sin(x), 1e-6);
    EXPECT_NEAR(functions[i].cosine, std::cos(x), 1e-6);
    if (std::abs(x) > 20) continue;  // The exponential of the large values overflows a float.
    expect_near(functions[i].exponential, std::exp(x));
  }
}

TEST_P(FunctionWords, ACompletionIsDoneByEitherWord) {
  DeviceArray<uint32_t> seen(*accelerator, 4);
  launch(*accelerator, phases_kernel, {.blocks = 1, .warps = 1}, {}, {.seen = seen.data()});
  EXPECT_EQ(seen.read(), (std::vector<uint32_t>{0, 0, 1, 1}));
}

}  // namespace

}  // namespace tokenyard::testing
