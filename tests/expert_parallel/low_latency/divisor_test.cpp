// Divisor against the division operator, at the edges of quotients.
#include <gtest/gtest.h>

#include "expert_parallel/low_latency/kernels/divisor.hpp"

namespace tokenyard::low_latency {
namespace {

constexpr uint32_t kDividendsEnd = uint32_t{1} << 31;

void expect_exact(const Divisor& by, uint32_t dividend) {
  const uint32_t quotient = by.quotient(dividend);
  EXPECT_EQ(quotient, dividend / by.divisor) << dividend << " / " << by.divisor;
  EXPECT_EQ(by.remainder(dividend, quotient), dividend % by.divisor);
}

void expect_exact_around_multiples(uint32_t divisor) {
  const Divisor by = Divisor::of(divisor);
  const uint32_t most = (kDividendsEnd - 1) / divisor;
  for (const uint32_t quotient : {0u, 1u, 2u, 3u, most / 3, most / 2, most - most / 5, most}) {
    if (quotient > most) continue;
    const uint32_t multiple = quotient * divisor;
    expect_exact(by, multiple);
    if (multiple > 0) expect_exact(by, multiple - 1);
    if (multiple + 1 < kDividendsEnd) expect_exact(by, multiple + 1);
  }
  expect_exact(by, kDividendsEnd - 1);
}

TEST(LowLatencyDivisor, IsExactAroundTheMultiplesOfSmallDivisors) {
  for (uint32_t divisor = 1; divisor <= 5000; ++divisor) expect_exact_around_multiples(divisor);
}

TEST(LowLatencyDivisor, IsExactBesideThePowersOfTwo) {
  for (uint32_t bit = 2; bit < 31; ++bit) {
    const uint32_t power = uint32_t{1} << bit;
    for (const uint32_t divisor : {power - 1, power, power + 1})
      expect_exact_around_multiples(divisor);
  }
}

}  // namespace
}  // namespace tokenyard::low_latency
