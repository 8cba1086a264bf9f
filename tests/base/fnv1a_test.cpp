#include "base/fnv1a.hpp"

#include <gtest/gtest.h>

#include <string_view>

namespace tokenyard {
namespace {

/// Test vectors published by its authors.
TEST(Fnv1a, IsThePublishedHash) {
  const auto hash = [](std::string_view text) { return fnv1a(std::as_bytes(std::span(text))); };
  EXPECT_EQ(hash(""), 0xcbf29ce484222325);
  EXPECT_EQ(hash("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(hash("foobar"), 0x85944171f73967e8);
}

}  // namespace
}  // namespace tokenyard
