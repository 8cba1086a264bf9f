#include "net/listener.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "net/polled_listener.hpp"

namespace tokenyard::net {
namespace {

using namespace std::chrono_literals;

/// A listener whose connections stay pending until a test releases them.
class ListenerTest : public ::testing::Test {
 protected:
  void serve(ListenerOptions options) {
    const auto keep = [this](TcpSocket socket, Pending place) -> awaitable<void> {
      held_.emplace_back(std::move(socket), std::move(place));
      co_return;
    };
    asio::co_spawn(io_, listener_.serve(options, keep, [this] { ++turned_away_; }), asio::detached);
  }
  TcpSocket client() {
    TcpSocket made(io_);
    made.connect({asio::ip::address_v4::loopback(), listener_.port()});
    return made;
  }
  bool run_until(const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!done() && std::chrono::steady_clock::now() < until) io_.run_one_for(10ms);
    return done();
  }

  asio::io_context io_;
  Listener listener_{io_.get_executor(), {asio::ip::address_v4::loopback(), 0}};
  std::vector<std::pair<TcpSocket, Pending>> held_;
  int turned_away_ = 0;
};

TEST_F(ListenerTest, TurnsAwayWhoComesWhileTooManyArePending) {
  serve({.pending_max = 2});
  std::vector<TcpSocket> early;
  for (int count = 0; count < 2; ++count) early.push_back(client());
  ASSERT_TRUE(run_until([&] { return held_.size() == 2; }));
  TcpSocket late = client();
  ASSERT_TRUE(run_until([&] { return turned_away_ == 1; }));
  std::byte byte;
  asio::error_code error;
  late.read_some(asio::buffer(&byte, 1), error);
  EXPECT_EQ(error, asio::error::eof);

  held_.front().second.release();
  const TcpSocket later = client();
  EXPECT_TRUE(run_until([&] { return held_.size() == 3; }));
  EXPECT_EQ(turned_away_, 1);
}

TEST_F(ListenerTest, EndsWhenItIsClosed) {
  serve({});
  io_.poll();
  listener_.close();
  io_.run_for(10s);
  EXPECT_TRUE(io_.stopped());
}

TEST(PolledListener, HandsOverWhoHasSaidItsFirstWords) {
  Poller poller;
  PolledListener listener({.address = "127.0.0.1", .first_bytes = 4}, poller);
  const FileDescriptor fast = connect_to(listener.address(), listener.port());
  const FileDescriptor slow = connect_to(listener.address(), listener.port());
  const std::vector<std::byte> words(4, std::byte{7});
  const auto say = [](const FileDescriptor& socket, std::span<const std::byte> bytes) {
    while (!bytes.empty()) bytes = bytes.subspan(send_now(socket, bytes).bytes);
  };
  say(fast, words);
  say(slow, std::span(words).first(3));
  auto now = std::chrono::steady_clock::now();
  const auto until = now + 10s;
  std::vector<PolledListener::Arrival> arrived;
  while (arrived.empty() && std::chrono::steady_clock::now() < until) arrived = listener.poll(now);
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived.front().first, words);
  EXPECT_EQ(listener.dropped(), 0u);

  // The other connection is dropped once its time is up, whatever it sends then.
  while (listener.dropped() == 0 && std::chrono::steady_clock::now() < until) {
    now += PolledListener::kPendingTime + 1ms;
    EXPECT_TRUE(listener.poll(now).empty());
  }
  EXPECT_EQ(listener.dropped(), 1u);
}

// A crowd must not keep the caller from its other work, and loses nobody.
TEST(PolledListener, TakesSoManyAtOnceAndTheOthersNext) {
  constexpr size_t kAtOnce = 64, kMore = 6;
  Poller poller;
  PolledListener listener({.address = "127.0.0.1", .first_bytes = 1}, poller);
  std::vector<FileDescriptor> clients;
  for (size_t count = 0; count < kAtOnce + kMore; ++count) {
    clients.push_back(connect_to(listener.address(), listener.port()));
    const std::byte word{9};
    while (send_now(clients.back(), {&word, 1}).bytes == 0) {
    }
  }
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(listener.poll(now).size(), kAtOnce);
  EXPECT_EQ(listener.poll(now).size(), kMore);
  EXPECT_EQ(listener.dropped(), 0u);
}

}  // namespace
}  // namespace tokenyard::net
