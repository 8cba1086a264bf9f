// Strangers are rejected and counted, and disturb nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "collectives/transports/datagram_mailbox.hpp"
#include "collectives/wire_ranks.hpp"
#include "net/tcp_socket.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {
namespace {

const net::Key kRightKey = wire_key("between us", "wire test");

class WireAuthenticationTest : public testing::Test {
 protected:
  void SetUp() override { ranks_.begin_epoch(5); }

  ChannelEndpoint endpoint() { return *decode_contact(ranks_[1].contact()); }
  /// A request that rank 1 would accept.
  ConnectRequest right_connect_request() const {
    return {.kind = ConnectRequestKind::tcp,
            .channel = {5, 1, Lane::collective, {0, 100}, {1, 101}},
            .bytes = 1 << 20,
            .stripe = 0,
            .stripes = 2,
            .nonce = 12345,
            .words = {}};
  }
  /// Rank 1's answer to these first bytes of a connection; nothing if it hangs up.
  std::optional<std::vector<std::byte>> answer_to(std::span<const std::byte> bytes) {
    const FileDescriptor socket = net::connect_to(endpoint().address, endpoint().port);
    size_t sent = 0;
    std::vector<std::byte> answer(sizeof(net::Digest));
    size_t got = 0;
    bool over = false;
    ranks_.poll_until("an answer", [&] {
      if (sent < bytes.size()) {
        const net::Moved moved = net::send_now(socket, bytes.subspan(sent));
        sent += moved.bytes;
        over = over || moved.over;
      }
      const net::Moved moved = net::receive_now(socket, std::span(answer).subspan(got));
      got += moved.bytes;
      return over || moved.over || got == answer.size();
    });
    if (got != answer.size()) return std::nullopt;
    return answer;
  }
  bool channel_works() {
    const auto low = ranks_[0].channel(9, Lane::collective, 1);
    const auto high = ranks_[1].channel(9, Lane::collective, 0);
    const std::vector<std::byte> byte{std::byte{1}};
    std::vector<std::byte> got(1);
    return ranks_.poll_until("room", [&] { return low->send_some(byte) == 1; }) &&
           ranks_.poll_until("a byte", [&] { return high->receive_some(got) == 1; });
  }

  WireRanks ranks_{2, [](WireOptions& options) { options.force_tcp = true; }};
};

TEST_F(WireAuthenticationTest, AreLetInWithTheRightInvitationOnly) {
  const auto frame = encode(right_connect_request(), kRightKey);
  const auto answer = answer_to(frame);
  ASSERT_TRUE(answer);
  const net::Digest expected = connect_reply(frame, kRightKey);
  EXPECT_TRUE(std::equal(answer->begin(), answer->end(), expected.begin(), expected.end()));
  EXPECT_EQ(ranks_[1].refused(), 0u);
  EXPECT_FALSE(answer_to(frame)) << "the same one again";
  EXPECT_EQ(ranks_[1].refused(), 1u);
}

TEST_F(WireAuthenticationTest, AreTurnedAwayForEveryFieldThatIsWrong) {
  const auto refused = [&](const std::function<void(ConnectRequest&)>& change,
                           const net::Key& key = kRightKey) {
    ConnectRequest connect_request = right_connect_request();
    change(connect_request);
    const uint64_t before = ranks_[1].refused();
    const bool turned_away = !answer_to(encode(connect_request, key));
    return turned_away && ranks_[1].refused() == before + 1;
  };
  const auto nothing = [](ConnectRequest&) {};
  EXPECT_TRUE(refused(nothing, wire_key("another secret", "wire test")));
  EXPECT_TRUE(refused(nothing, wire_key("between us", "another job")));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.channel.epoch = 4; }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.channel.initiator.incarnation = 99; }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.channel.acceptor.incarnation = 99; }));
  EXPECT_TRUE(
      refused([](ConnectRequest& it) { std::swap(it.channel.initiator, it.channel.acceptor); }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.kind = ConnectRequestKind::shared_memory; }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.stripes = 0; }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.stripes = 1u << 31; }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.stripe = 2; }));
  EXPECT_TRUE(refused([](ConnectRequest& it) { it.bytes = 0; }));
  EXPECT_TRUE(channel_works());
}

TEST_F(WireAuthenticationTest, CannotGuess) {
  std::mt19937 random(1);
  const auto right = encode(right_connect_request(), kRightKey);
  for (size_t at = 0; at < right.size(); ++at) {
    auto frame = right;
    frame[at] ^= static_cast<std::byte>(1 << random() % 8);
    EXPECT_FALSE(decode_connect_request(frame, kRightKey)) << at;
    EXPECT_FALSE(decode_connect_request(std::span(right).first(at), kRightKey)) << at;
  }
  for (int round = 0; round < 50; ++round) {
    auto garbage = bytes_of_seed(112 + random() % 3000, random());
    EXPECT_FALSE(answer_to(garbage));
  }
  EXPECT_EQ(ranks_[1].refused(), 50u);
  EXPECT_TRUE(channel_works());
}

TEST_F(WireAuthenticationTest, WhoHangUpEarlyAreForgotten) {
  const auto right = encode(right_connect_request(), kRightKey);
  for (size_t bytes = 0; bytes < right.size(); bytes += 7) {
    const FileDescriptor socket = net::connect_to(endpoint().address, endpoint().port);
    ranks_.poll_until("a connection", [&] {
      return bytes == 0 || net::send_now(socket, std::span(right).first(bytes)).bytes == bytes;
    });
  }
  ranks_.poll_until("their ends", [&] { return ranks_[1].refused() == right.size() / 7; });
  EXPECT_TRUE(channel_works());
}

TEST_F(WireAuthenticationTest, WhoSayNothingTakeNobodysPlace) {
  std::vector<FileDescriptor> silent;
  for (size_t count = 0; count < 3 * net::PolledListener::kPendingMax; ++count) {
    silent.push_back(net::connect_to(endpoint().address, endpoint().port));
  }
  EXPECT_TRUE(channel_works());
  ranks_.poll_until("them to be seen",
                    [&] { return ranks_[1].refused() >= 2 * net::PolledListener::kPendingMax; });
  EXPECT_TRUE(channel_works());
}

TEST_F(WireAuthenticationTest, CannotDisturbByLetters) {
  DatagramMailbox stranger;
  const net::AbstractAddress to(endpoint().mailbox);
  std::mt19937 random(2);
  uint64_t datagrams = 0;
  for (int round = 0; round < 200; ++round) {
    auto datagram = bytes_of_seed(1 + random() % 400, random());
    FileDescriptor enclosed;
    if (round % 3 == 0) enclosed = FileDescriptor(dup(stranger.native()));
    ranks_.poll_until("room", [&] { return stranger.post(to, datagram, enclosed) == Posted::yes; });
    ++datagrams;
  }
  // A request of the job for an epoch that does not exist, and one without its segment.
  ConnectRequest old = right_connect_request();
  old.kind = ConnectRequestKind::shared_memory;
  old.channel.epoch = 4;
  ConnectRequest empty = right_connect_request();
  empty.kind = ConnectRequestKind::shared_memory;
  for (const ConnectRequest& connect_request : {old, empty}) {
    ranks_.poll_until("room", [&] {
      return stranger.post(to, encode(connect_request, kRightKey), {}) == Posted::yes;
    });
  }
  ranks_.poll_until("all to be read", [&] { return ranks_[1].refused() == datagrams + 1; });
  EXPECT_TRUE(channel_works());
}

}  // namespace
}  // namespace tokenyard::collectives
