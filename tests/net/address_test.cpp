#include "net/address.hpp"

#include <gtest/gtest.h>

#include "net/listener.hpp"

namespace tokenyard::net {
namespace {

TEST(Address, IsAHostAndAPort) {
  const auto plain = parse_address("node7:29500");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->host, "node7");
  EXPECT_EQ(plain->port, 29500);
  const auto six = parse_address("[fe80::1]:1");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->host, "fe80::1");
  EXPECT_EQ(six->port, 1);
}

TEST(Address, IsNothingElse) {
  for (const char* text : {"", ":", "node7", ":29500", "node7:", "node7:0", "node7:65536",
                           "node7:1x", "node7:-1", "[]:1"}) {
    EXPECT_FALSE(parse_address(text)) << text;
  }
}

TEST(Address, OfThisProcessIsANumber) {
  for (const auto& target : {std::optional<Address>(), std::optional(Address{"127.0.0.1", 9})}) {
    asio::error_code error;
    asio::ip::make_address(own_address(target), error);
    EXPECT_FALSE(error);
  }
  EXPECT_EQ(own_address(Address{"127.0.0.1", 9}), "127.0.0.1");
}

TEST(Address, IsListenedAtOnLoopbackOrOnEveryInterface) {
  EXPECT_EQ(listening_address("127.0.0.2").to_string(), "127.0.0.2");
  EXPECT_EQ(listening_address("::1").to_string(), "::1");
  EXPECT_EQ(listening_address("192.0.2.7").to_string(), "0.0.0.0");
  EXPECT_EQ(listening_address("2001:db8::7").to_string(), "::");
  EXPECT_EQ(listening_address("node7").to_string(), "0.0.0.0");
}

}  // namespace
}  // namespace tokenyard::net
