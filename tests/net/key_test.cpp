#include "net/key.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "control/store_protocol.hpp"
#include "net/handshake.hpp"
#include "net/sealed_frame.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::net {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

// Processes of one job may come from different builds: what they sign is the same in each.

TEST(Key, SignsAllPartsAsHmacSha256) {
  const Key key("secret", "purpose");
  EXPECT_EQ(hex(key.sign({as_bytes("one"), as_bytes("two"), as_bytes("three")})),
            "8adbff16520fa560fe14ce1ee837ea045b88a1e413393b120b8dec8198611cf7");
  const Key derived = key.derive("label", {as_bytes("a"), as_bytes("b")});
  EXPECT_EQ(hex(derived.sign({as_bytes("x")})),
            "ad89614ed59de4b8256a65913d03f2a8075378e86ce40afcfc7ec4cfa8cccc7f");
}

TEST(Key, OfAStoreIsThatOfItsSecret) {
  const Key key = control::store_protocol::key_of("secret");
  EXPECT_EQ(hex(key.sign({as_bytes("x")})),
            "1377db3829755239a4eaa675a252232b4facb827c67d2d3cdf527b7bed0ae990");
}

TEST(Key, SignaturesOfOtherLengthsAreNotTheSame) {
  const std::string text = "abc";
  EXPECT_TRUE(same(as_bytes(text), as_bytes("abc")));
  EXPECT_FALSE(same(as_bytes(text), as_bytes("abd")));
  EXPECT_FALSE(same(as_bytes("ab"), as_bytes(text)));
  EXPECT_FALSE(same(as_bytes(text), as_bytes("ab")));
}

TEST(RandomBytes, FillAllOfThemAnew) {
  std::vector<std::byte> one(5000);
  std::vector<std::byte> other(one.size());
  fill_randomly(one);
  fill_randomly(other);
  for (size_t at = 0; at + 16 <= one.size(); at += 16) {
    EXPECT_FALSE(std::equal(one.begin() + at, one.begin() + at + 16, other.begin() + at)) << at;
  }
  EXPECT_NE(random_number(), random_number());
}

TEST(SealedFrame, IsRefusedByItsSenderWhereItIsTooLong) {
  Sealer sealer(Key("secret", "purpose"));
  EXPECT_NO_THROW(sealer.seal(1, std::vector<std::byte>(kFramePayloadMax)));
  EXPECT_THROW(sealer.seal(1, std::vector<std::byte>(kFramePayloadMax + 1)), InternalError);
}

TEST(SealedFrame, MayBeAsLongAsTheLimit) {
  Opener opener(Key("secret", "purpose"));
  const auto header_of = [](uint32_t payload) {
    std::array<std::byte, kFrameHeaderBytes> header{};
    for (size_t at = 0; at < sizeof payload; ++at) header[at] = std::byte(payload >> 8 * at);
    return header;
  };
  EXPECT_EQ(opener.judge(header_of(kFramePayloadMax)), kFramePayloadMax + kSealBytes);
  EXPECT_THROW(opener.judge(header_of(kFramePayloadMax + 1)), ProtocolError);
}

}  // namespace
}  // namespace tokenyard::net
