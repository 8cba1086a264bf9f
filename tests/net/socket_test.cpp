#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "net/fork_guard.hpp"
#include "net/polled_listener.hpp"
#include "net/stream.hpp"
#include "net/tcp_socket.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::net {
namespace {

using namespace std::chrono_literals;

int option(int socket, int level, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  EXPECT_EQ(getsockopt(socket, level, name, &value, &bytes), 0) << name;
  return value;
}

int buffer_of(const FileDescriptor& socket, int name) {
  return option(socket.native(), SOL_SOCKET, name);
}

TEST(TcpSockets, AreTunedForSmallMessagesAndDeadHosts) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_NE(option(socket.native(), IPPROTO_TCP, TCP_NODELAY), 1);
  tune(socket, 0);
  EXPECT_EQ(option(socket.native(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(socket.native(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(socket.native(), IPPROTO_TCP, TCP_KEEPIDLE), 10);
  EXPECT_EQ(option(socket.native(), IPPROTO_TCP, TCP_KEEPINTVL), 5);
  EXPECT_EQ(option(socket.native(), IPPROTO_TCP, TCP_KEEPCNT), 4);
  // It would end a connection to a rank that computes and does not read.
  EXPECT_EQ(option(socket.native(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

TEST(TcpSockets, HaveTheBuffersThatWereAskedForOrTheSystems) {
  const FileDescriptor plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int send = buffer_of(plain, SO_SNDBUF);
  const int receive = buffer_of(plain, SO_RCVBUF);
  tune(plain, 0);
  EXPECT_EQ(buffer_of(plain, SO_SNDBUF), send);
  EXPECT_EQ(buffer_of(plain, SO_RCVBUF), receive);
  // The system doubles what it is given, to have room for its own records.
  tune(plain, 50'000);
  EXPECT_EQ(buffer_of(plain, SO_SNDBUF), 100'000);
  EXPECT_EQ(buffer_of(plain, SO_RCVBUF), 100'000);
}

TEST(TcpSockets, ListenAgainAtAPortThatWasChosen) {
  uint16_t port = 0;
  FileDescriptor accepted;
  {
    const Listening first = listen_at("127.0.0.1");
    EXPECT_EQ(first.address, "127.0.0.1");
    EXPECT_EQ(option(first.socket.native(), SOL_SOCKET, SO_REUSEADDR), 0);
    port = first.port;
  }
  const Listening chosen = listen_at("127.0.0.1", port);
  EXPECT_EQ(chosen.port, port);
  EXPECT_EQ(option(chosen.socket.native(), SOL_SOCKET, SO_REUSEADDR), 1);
  EXPECT_THROW(listen_at("127.0.0.1", port), OsError);
}

TEST(TcpSockets, NameAnAddressThatIsNone) {
  EXPECT_THROW(listen_at("no such host"), OsError);
  EXPECT_THROW(connect_to("localhost", 1), OsError);  // A name, not a number.
  EXPECT_THROW(connect_to("127.0.0.1", 1, {.address = "192.0.2.1", .interface = {}}), OsError);
}

TEST(TcpSockets, LeaveByTheOriginOfTheirFamily) {
  const Listening listener = listen_at("127.0.0.1");
  const auto origin_of = [](const FileDescriptor& socket) {
    sockaddr_in own{};
    socklen_t bytes = sizeof own;
    EXPECT_EQ(getsockname(socket.native(), reinterpret_cast<sockaddr*>(&own), &bytes), 0);
    return ntohl(own.sin_addr.s_addr);
  };
  const FileDescriptor chosen =
      connect_to(listener.address, listener.port, {.address = "127.0.0.2", .interface = {}});
  EXPECT_EQ(origin_of(chosen), 0x7f000002u);
  const FileDescriptor other =
      connect_to(listener.address, listener.port, {.address = "::1", .interface = {}});
  EXPECT_EQ(origin_of(other), 0x7f000001u);
  char name[32] = {};
  socklen_t bytes = sizeof name;
  const FileDescriptor bound =
      connect_to(listener.address, listener.port, {.address = "127.0.0.3", .interface = "lo"});
  ASSERT_EQ(getsockopt(bound.native(), SOL_SOCKET, SO_BINDTODEVICE, name, &bytes), 0);
  EXPECT_STREQ(name, "lo");
  EXPECT_EQ(origin_of(bound), 0x7f000003u);
}

TEST(TcpSockets, SayWhetherTheOtherEndHasGone) {
  const Listening listener = listen_at("127.0.0.1");
  FileDescriptor one = connect_to(listener.address, listener.port);
  FileDescriptor other;
  for (const auto until = std::chrono::steady_clock::now() + 10s;
       !other && std::chrono::steady_clock::now() < until;) {
    other = accept_socket(listener.socket.native());
  }
  ASSERT_TRUE(other);
  std::byte byte{};
  const Moved nothing = receive_now(other, std::span(&byte, 1));
  EXPECT_EQ(nothing.bytes, 0u);
  EXPECT_EQ(nothing.error, 0);
  EXPECT_FALSE(nothing.over);
  EXPECT_FALSE(receive_now(other, {}).over);  // Asks for nothing.
  one = {};
  Moved last;
  for (const auto until = std::chrono::steady_clock::now() + 10s;
       !last.over && std::chrono::steady_clock::now() < until;) {
    last = receive_now(other, std::span(&byte, 1));
  }
  EXPECT_TRUE(last.over);
  EXPECT_EQ(last.error, 0);
}

/// A stream and the socket at its other end.
class StreamTest : public ::testing::Test {
 protected:
  StreamTest() {
    asio::ip::tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    TcpSocket near(io_);
    near.connect(acceptor.local_endpoint());
    far_ = acceptor.accept();
    native_ = near.native_handle();
    port_ = acceptor.local_endpoint().port();
    stream_.emplace(std::move(near), 2500ms);
  }
  int tcp(int name) const { return option(native_, IPPROTO_TCP, name); }
  /// Returns what reading one byte at the other end says.
  asio::error_code far_end() {
    std::byte byte;
    asio::error_code error;
    far_.read_some(asio::buffer(&byte, 1), error);
    return error;
  }

  asio::io_context io_;
  TcpSocket far_{io_};
  int native_ = -1;
  uint16_t port_ = 0;
  std::optional<Stream> stream_;
};

TEST_F(StreamTest, EndsOnceAHostIsSilentForThatLong) {
  EXPECT_EQ(tcp(TCP_NODELAY), 1);
  EXPECT_EQ(option(native_, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(tcp(TCP_KEEPIDLE), 1);
  EXPECT_EQ(tcp(TCP_KEEPINTVL), 1);
  EXPECT_EQ(tcp(TCP_KEEPCNT), 3);
  EXPECT_EQ(tcp(TCP_USER_TIMEOUT), 2500);
  EXPECT_EQ(stream_->remote().port(), port_);
}

TEST_F(StreamTest, EndsInEachDirectionAlone) {
  stream_->finish_writing();
  EXPECT_EQ(far_end(), asio::error::eof);
  EXPECT_TRUE(stream_->is_open());
  stream_->finish_reading();
  std::byte byte;
  EXPECT_EQ(recv(native_, &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(StreamTest, EndsWhenItIsClosed) {
  stream_->close();
  EXPECT_FALSE(stream_->is_open());
  EXPECT_EQ(far_end(), asio::error::eof);
}

TEST_F(StreamTest, EndsWhenItsTimeIsUpUnlessThatWasCancelled) {
  {
    auto kept = std::make_shared<Stream>(std::move(far_), 1s);
    { const StreamTimeout unused(kept, 1ms); }
    io_.run_for(10s);
    EXPECT_TRUE(kept->is_open());
    io_.restart();
    const StreamTimeout used(kept, 1ms);
    io_.run_for(10s);
    EXPECT_FALSE(kept->is_open());
  }
}

/// A listener that is polled, and clients that say nothing.
class QuietClients : public ::testing::Test {
 protected:
  void connect(size_t count) {
    for (size_t at = 0; at < count; ++at)
      clients_.push_back(connect_to(listener_.address(), listener_.port()));
  }
  /// Polls until `done`, all at one time, and returns whether it came to that.
  bool poll_until(const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!done() && std::chrono::steady_clock::now() < until) {
      for (auto& arrival : listener_.poll(start_)) arrived_.push_back(std::move(arrival));
    }
    return done();
  }

  Poller poller_;
  PolledListener listener_{{.address = "127.0.0.1", .first_bytes = 1, .socket_buffer_bytes = 0},
                           poller_};
  const PolledListener::Time start_ = std::chrono::steady_clock::now();
  std::vector<FileDescriptor> clients_;
  std::vector<PolledListener::Arrival> arrived_;
};

TEST_F(QuietClients, MakeRoomForNewerOnesOldestFirst) {
  connect(PolledListener::kPendingMax + 2);
  ASSERT_TRUE(poll_until([&] { return listener_.dropped() == 2; }));
  EXPECT_FALSE(listener_.is_short());
  const std::byte word{1};
  // The first two were dropped: only the third one's word can arrive.
  for (size_t at = 2; at < clients_.size(); ++at) send_now(clients_[at], std::span(&word, 1));
  ASSERT_TRUE(poll_until([&] { return arrived_.size() == PolledListener::kPendingMax; }));
  EXPECT_EQ(listener_.dropped(), 2u);
}

TEST_F(QuietClients, AreCountedWhenTheyEnd) {
  connect(2);
  clients_.pop_back();
  ASSERT_TRUE(poll_until([&] { return listener_.dropped() == 1; }));
  clients_.clear();
  ASSERT_TRUE(poll_until([&] { return listener_.dropped() == 2; }));
  EXPECT_TRUE(arrived_.empty());
}

TEST_F(QuietClients, WaitWhileThereAreNoDescriptors) {
  connect(1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool noticed = poll_until([&] { return listener_.is_short(); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(noticed);
  const std::byte word{1};
  send_now(clients_.front(), std::span(&word, 1));
  EXPECT_TRUE(poll_until([&] { return arrived_.size() == 1; }));
  EXPECT_FALSE(listener_.is_short());
}

TEST(PollerTest, SleepsAsLongAsItIsToldAndNoLonger) {
  Poller poller;
  poller.sleep(0ns);  // The first sleep sees the waker's own registration.
  const auto asleep = std::chrono::steady_clock::now();
  poller.sleep(100ms);
  EXPECT_GE(std::chrono::steady_clock::now() - asleep, 100ms);
  const auto begin = std::chrono::steady_clock::now();
  poller.sleep(0ns);
  poller.wake();
  poller.sleep(std::chrono::hours(1));  // A wake-up before the sleep ends it.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(PollerTest, NeedsDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string why;
  try {
    const Poller poller;
  } catch (const OsError& error) {
    why = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(why.find("epoll_create1"), std::string::npos) << why;
}

TEST(TrafficClass, IsThatOfAllPacketsOfASocket) {
  constexpr uint8_t kClass = 0x68;
  const FileDescriptor four = open_socket(AF_INET, SOCK_STREAM);
  set_traffic_class(four, kClass);
  EXPECT_EQ(option(four.native(), IPPROTO_IP, IP_TOS), kClass);
  if (const FileDescriptor six = open_socket(AF_INET6, SOCK_STREAM)) {
    set_traffic_class(six, kClass);
    EXPECT_EQ(option(six.native(), IPPROTO_IPV6, IPV6_TCLASS), kClass);
    EXPECT_EQ(option(six.native(), IPPROTO_IP, IP_TOS), kClass);
  }
  const FileDescriptor other = open_socket(AF_UNIX, SOCK_STREAM);
  EXPECT_THROW(set_traffic_class(other, kClass), OsError);
}

}  // namespace
}  // namespace tokenyard::net
