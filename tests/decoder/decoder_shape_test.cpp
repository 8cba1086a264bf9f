// Rejected shapes; queries are safe for any numbers.
#include "decoder/decoder_shape.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decoder/decoder_shapes.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {
namespace {

struct Count {
  const char* name;
  uint32_t DecoderShape::*of;
};
const std::vector<Count> kCounts = {{"vocabulary", &DecoderShape::vocabulary},
                                    {"hidden", &DecoderShape::hidden},
                                    {"layers", &DecoderShape::layers},
                                    {"query_heads", &DecoderShape::query_heads},
                                    {"kv_heads", &DecoderShape::kv_heads},
                                    {"head_dim", &DecoderShape::head_dim},
                                    {"inner", &DecoderShape::inner},
                                    {"page_tokens", &DecoderShape::page_tokens},
                                    {"positions_max", &DecoderShape::positions_max}};

std::string refused(auto ask) {
  try {
    ask();
  } catch (const InvalidArgument& error) {
    return error.argument + ": " + error.seen;
  }
  return "nothing";
}

TEST(DecoderShape, ACountOfNoneIsNamed) {
  for (const Count& count : kCounts) {
    DecoderShape shape = small_shape(32);
    shape.*count.of = 0;
    const std::string named = std::string(count.name) + ": 0";
    EXPECT_EQ(refused([&] { shape.check(4); }), named);
    EXPECT_EQ(refused([&] { shape.blocks_of(4); }), named);
  }
}

TEST(DecoderShape, NoRanksAreRefused) {
  const DecoderShape shape = small_shape(32);
  EXPECT_EQ(refused([&] { shape.check(4, 0); }), "ranks: 0");
  EXPECT_EQ(refused([&] { shape.blocks_of(4, 0); }), "ranks: 0");
  EXPECT_EQ(refused([&] { shape.check(4, UINT32_MAX); }), "ranks: 4294967295");
  EXPECT_EQ(refused([&] { shape.blocks_of(4, UINT32_MAX); }), "ranks: 4294967295");
}

/// With more ranks than heads or inner elements, some ranks would have none.
TEST(DecoderShape, WhatCannotBeSharedIsRefused) {
  DecoderShape shape = small_shape(32);
  shape.inner = 1;
  EXPECT_EQ(refused([&] { shape.check(4, 2); }), "inner: 1");
  EXPECT_EQ(refused([&] { shape.blocks_of(4, 2); }), "inner: 1");
}

/// All members except those that only memory bounds.
TEST(DecoderShape, CountsBeyondAllBoundsAreRefused) {
  for (const Count& count : kCounts) {
    if (count.of == &DecoderShape::vocabulary || count.of == &DecoderShape::layers) continue;
    DecoderShape shape = small_shape(32);
    shape.*count.of = UINT32_MAX;
    EXPECT_NE(refused([&] { shape.check(4); }), "nothing") << count.name;
    EXPECT_NE(refused([&] { shape.blocks_of(4); }), "nothing") << count.name;
  }
}

TEST(DecoderShape, TheMostBlocksThatCanShareIt) {
  const DecoderShape shape = small_shape(32);
  EXPECT_EQ(shape.blocks_of(33), 32u);
  EXPECT_EQ(shape.blocks_of(3), 0u);
  EXPECT_EQ(shape.blocks_of(33, 2), 16u);
  shape.check(32);
  EXPECT_EQ(refused([&] { shape.check(3); }), "blocks: 3");
  EXPECT_EQ(refused([&] { shape.check(0); }), "blocks: 0");
  EXPECT_EQ(refused([&] { shape.check(1u << 31); }), "blocks: 2147483648");
  EXPECT_EQ(shape.blocks_of(UINT32_MAX), 32u);
}

}  // namespace
}  // namespace tokenyard::megakernel
