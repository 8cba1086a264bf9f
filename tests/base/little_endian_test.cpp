#include "base/little_endian.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tokenyard {
namespace {

enum class Colour : uint16_t { blue = 0xb10e };

TEST(LittleEndian, IsTheseBytes) {
  std::vector<std::byte> bytes(15);
  std::span<std::byte> to(bytes);
  put_number(to, uint8_t{0xf1});
  put_number(to, Colour::blue);
  put_number(to, uint32_t{0xe1e2e3e4});
  put_number(to, uint64_t{0xd1d2d3d4d5d6d7d8});
  EXPECT_TRUE(to.empty());
  std::vector<std::byte> expected;
  for (const int byte :
       {0xf1, 0x0e, 0xb1, 0xe4, 0xe3, 0xe2, 0xe1, 0xd8, 0xd7, 0xd6, 0xd5, 0xd4, 0xd3, 0xd2, 0xd1})
    expected.push_back(static_cast<std::byte>(byte));
  EXPECT_EQ(bytes, expected);
  std::span<const std::byte> from(bytes);
  EXPECT_EQ(take_number<uint8_t>(from), 0xf1);
  EXPECT_EQ(take_number<Colour>(from), Colour::blue);
  EXPECT_EQ(take_number<uint32_t>(from), 0xe1e2e3e4);
  EXPECT_EQ(take_number<uint64_t>(from), 0xd1d2d3d4d5d6d7d8);
  EXPECT_TRUE(from.empty());
}

static_assert(!WireNumber<bool> && !WireNumber<int> && !WireNumber<float>);

}  // namespace
}  // namespace tokenyard
