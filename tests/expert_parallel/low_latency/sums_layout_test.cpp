#include "expert_parallel/low_latency/kernels/sums_layout.hpp"

#include <gtest/gtest.h>

namespace tokenyard::test {
namespace {

using low_latency::SumsLayout;

/// The content of a row in one format is never a complete row in the other.
TEST(LowLatencySumsLayout, EitherFormatHasAPieceThatTheOtherHasNot) {
  for (uint32_t hidden = 32; hidden <= 1u << 15; hidden += 32) {
    const SumsLayout layout = SumsLayout::of(hidden);
    const auto is_in = [&](bool logfmt, uint32_t piece) {
      const uint32_t first = layout.first(logfmt);
      const uint32_t count = logfmt ? layout.logfmt_pieces : layout.bf16_pieces;
      return piece >= first && piece < first + count;
    };
    for (const bool logfmt : {false, true}) {
      const auto alien = static_cast<uint32_t>(static_cast<int32_t>(layout.first(logfmt)) +
                                               layout.only_in_other(logfmt));
      ASSERT_TRUE(is_in(!logfmt, alien)) << hidden;
      ASSERT_FALSE(is_in(logfmt, alien)) << hidden;
      ASSERT_LE(layout.first(logfmt) + (logfmt ? layout.logfmt_pieces : layout.bf16_pieces),
                layout.staged_pieces());
      ASSERT_EQ(layout.first(logfmt) % 8, 0u) << "whole cache lines";
    }
  }
}

}  // namespace
}  // namespace tokenyard::test
