#include "net/address.hpp"

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "net/abstract_address.hpp"
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
  // The shortest host, and a bracket that nothing closes.
  const auto shortest = parse_address("h:1");
  ASSERT_TRUE(shortest);
  EXPECT_EQ(shortest->host, "h");
  const auto open = parse_address("[xz:1");
  ASSERT_TRUE(open);
  EXPECT_EQ(open->host, "[xz");
  const auto other = parse_address("[x~:1");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->host, "[x~");
}

TEST(Address, IsNothingElse) {
  for (const char* text : {"", ":", "7", "node7", ":29500", "node7:", "node7:0", "node7:65536",
                           "node7:1x", "node7:-1", "[]:1"}) {
    EXPECT_FALSE(parse_address(text)) << text;
  }
}

TEST(Address, OfTheFirstInterfaceThatIsUpAndNoLoopback) {
  sockaddr_in six{};  // Larger families have larger numbers.
  six.sin_family = AF_INET6;
  std::array<sockaddr_in, 4> addresses{};
  std::array<ifaddrs, 6> list{};
  for (size_t at = 0; at + 1 < list.size(); ++at) list[at].ifa_next = &list[at + 1];
  for (size_t at = 0; at < addresses.size(); ++at) {
    addresses[at].sin_family = AF_INET;
    addresses[at].sin_addr.s_addr = htonl(0x0a000001 + static_cast<uint32_t>(at));
    list[at + 2].ifa_addr = reinterpret_cast<sockaddr*>(&addresses[at]);
  }
  list[0].ifa_flags = IFF_UP;  // Without an address.
  list[1].ifa_addr = reinterpret_cast<sockaddr*>(&six);
  list[1].ifa_flags = IFF_UP;
  list[2].ifa_flags = IFF_UP | IFF_LOOPBACK;
  list[3].ifa_flags = IFF_BROADCAST;  // Down.
  list[4].ifa_flags = IFF_UP | IFF_BROADCAST;
  list[5].ifa_flags = IFF_UP;
  EXPECT_EQ(first_address(list.data()), "10.0.0.3");
  list[3].ifa_next = nullptr;
  EXPECT_EQ(first_address(list.data()), "127.0.0.1");
  EXPECT_EQ(first_address(nullptr), "127.0.0.1");
}

TEST(Address, OfThisProcessIsANumber) {
  for (const auto& target : {std::optional<Address>(), std::optional(Address{"127.0.0.1", 9})}) {
    asio::error_code error;
    asio::ip::make_address(own_address(target), error);
    EXPECT_FALSE(error);
  }
  EXPECT_EQ(own_address(Address{"127.0.0.1", 9}), "127.0.0.1");
}

// In a network namespace of its own, where no route leads anywhere and no interface is up.
TEST(Address, OfAHostWithoutANetworkIsLoopback) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) _exit(77);
    _exit(own_address({}) == "127.0.0.1" ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no right to unshare";
  EXPECT_EQ(status, 0);
}

TEST(AbstractAddress, HasItsNameBehindAZeroByte) {
  const AbstractAddress address("tokenyard-7");
  const auto* const native = reinterpret_cast<const sockaddr_un*>(address.native());
  EXPECT_EQ(native->sun_family, AF_UNIX);
  const std::string expected("\0tokenyard-7", 12);
  EXPECT_EQ(address.bytes(), offsetof(sockaddr_un, sun_path) + expected.size());
  EXPECT_EQ(std::string(native->sun_path, expected.size()), expected);
  const AbstractAddress longest(std::string(200, 'x'));
  EXPECT_EQ(longest.bytes(), sizeof(sockaddr_un));
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
