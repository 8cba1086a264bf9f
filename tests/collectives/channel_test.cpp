// The contract of every channel, over shared memory and TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "collectives/transports/channel_endpoint.hpp"
#include "collectives/transports/datagram_mailbox.hpp"
#include "collectives/wire_ranks.hpp"

namespace tokenyard::collectives {
namespace {

enum class Way { shared_memory, tcp };

class ChannelTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override { ranks_.begin_epoch(1); }

  static void adjust(WireOptions& options) { options.force_tcp = GetParam() != Way::shared_memory; }

  /// Moves all of `bytes`, in pieces of at most these sizes.
  std::vector<std::byte> carry(Channel& from, Channel& to, std::span<const std::byte> bytes,
                               size_t send_max, size_t receive_max) {
    std::vector<std::byte> got(bytes.size());
    size_t sent = 0;
    size_t received = 0;
    ranks_.poll_until("a message", [&] {
      const size_t offered = sent + std::min(send_max, bytes.size() - sent);
      sent += from.send_some(bytes.subspan(sent, offered - sent));
      received += to.receive_some(
          std::span(got).subspan(received, std::min(receive_max, got.size() - received)));
      EXPECT_LE(received, offered);
      return received == got.size() && sent == got.size();
    });
    return got;
  }

  WireRanks ranks_{2, adjust};
};

TEST_P(ChannelTest, CarriesBytesBothWaysInOrder) {
  const auto low = ranks_[0].channel(7, Lane::collective, 1);
  const auto high = ranks_[1].channel(7, Lane::collective, 0);
  for (const size_t bytes : {size_t{1}, size_t{4095}, size_t{65537}, size_t{5'000'011}}) {
    for (const size_t piece : {size_t{977}, size_t{1} << 20}) {
      const auto message = bytes_of_seed(bytes, static_cast<uint32_t>(bytes + piece));
      EXPECT_TRUE(carry(*low, *high, message, 1 << 20, piece) == message) << bytes;
      EXPECT_TRUE(carry(*high, *low, message, piece, 1 << 20) == message) << bytes;
    }
  }
  EXPECT_EQ(low->bytes_sent(), high->bytes_sent());
  EXPECT_EQ(low->bytes_sent(), 2 * (1 + 4095 + 65537 + 5'000'011u));
  EXPECT_EQ(ranks_[0].bytes_sent(), low->bytes_sent());
}

TEST_P(ChannelTest, KeepsGroupsAndLanesApart) {
  struct Line {
    std::shared_ptr<Channel> low, high;
    std::vector<std::byte> message;
  };
  std::vector<Line> lines;
  for (const GroupId group : {GroupId{0}, GroupId{1}, ~GroupId{0}}) {
    for (const Lane lane : {Lane::collective, Lane::point_to_point}) {
      lines.push_back({ranks_[0].channel(group, lane, 1), ranks_[1].channel(group, lane, 0),
                       bytes_of_seed(1000, static_cast<uint32_t>(lines.size()))});
    }
  }
  for (Line& line : lines) {
    ranks_.poll_until("room", [&] { return line.low->send_some(line.message) != 0; });
  }
  for (Line& line : lines) {
    std::vector<std::byte> got(1000);
    size_t received = 0;
    ranks_.poll_until("a message", [&] {
      received += line.high->receive_some(std::span(got).subspan(received));
      return received == got.size();
    });
    EXPECT_TRUE(got == line.message);
  }
}

TEST_P(ChannelTest, IsTheSameWhenAskedForAgain) {
  auto first = ranks_[0].channel(3, Lane::collective, 1);
  EXPECT_EQ(first, ranks_[0].channel(3, Lane::collective, 1));
}

TEST_P(ChannelTest, SaysNothingUntilBothEndsExist) {
  // The initiator alone: its peer takes part unasked, so the channel cannot get stuck.
  const auto low = ranks_[0].channel(1, Lane::collective, 1);
  const auto message = bytes_of_seed(100, 1);
  EXPECT_EQ(low->send_some(message), 0u);
  ranks_.poll_until("room", [&] { return low->send_some(message) == message.size(); });
  // The acceptor alone waits.
  const auto high = ranks_[1].channel(2, Lane::collective, 0);
  ranks_.poll_a_while();
  EXPECT_EQ(high->send_some(message), 0u);
  EXPECT_EQ(carry(*high, *ranks_[0].channel(2, Lane::collective, 1), message, 100, 100), message);
  // The initiator's bytes have been kept.
  std::vector<std::byte> got(message.size());
  const auto late = ranks_[1].channel(1, Lane::collective, 0);
  ranks_.poll_until("the message", [&] { return late->receive_some(got) == got.size(); });
  EXPECT_EQ(got, message);
}

TEST_P(ChannelTest, ShowsWhatHasArrivedInOnePiece) {
  const auto low = ranks_[0].channel(1, Lane::collective, 1);
  const auto high = ranks_[1].channel(1, Lane::collective, 0);
  // Frames of odd sizes, so that some cross the end of a ring or buffer.
  constexpr size_t kFrame = 40'009;
  for (uint32_t round = 0; round < 100; ++round) {
    const auto frame = bytes_of_seed(kFrame, round);
    size_t sent = 0;
    ranks_.poll_until("a frame", [&] {
      sent += low->send_some(std::span(frame).subspan(sent));
      return high->arrived(kFrame).size() == kFrame;
    });
    const auto seen = high->arrived(kFrame);
    ASSERT_TRUE(std::equal(seen.begin(), seen.end(), frame.begin())) << round;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(seen.data()) % 64, round * kFrame % 64);
    high->consume(100);
    std::vector<std::byte> rest(kFrame - 100);
    ASSERT_EQ(high->receive_some(rest), rest.size());
    ASSERT_TRUE(std::equal(rest.begin(), rest.end(), frame.begin() + 100)) << round;
  }
  EXPECT_TRUE(high->arrived(1).empty());
}

TEST_P(ChannelTest, TakesOnlyWhatThereIsRoomFor) {
  const auto low = ranks_[0].channel(1, Lane::collective, 1);
  const auto high = ranks_[1].channel(1, Lane::collective, 0);
  const auto message = bytes_of_seed(64 << 20, 5);  // exceeds all buffers on the way
  ranks_.poll_until("room", [&] { return low->send_some(std::span(message).first(1)) == 1; });
  size_t sent = 1;
  for (int turn = 0; turn < 2000; ++turn) sent += low->send_some(std::span(message).subspan(sent));
  EXPECT_LT(sent, message.size());
  std::vector<std::byte> got(message.size());
  size_t received = 0;
  ranks_.poll_until("the rest", [&] {
    sent += low->send_some(std::span(message).subspan(sent));
    received += high->receive_some(std::span(got).subspan(received));
    return received == got.size();
  });
  EXPECT_TRUE(got == message);
}

TEST_P(ChannelTest, EndsWithItsEpoch) {
  const auto low = ranks_[0].channel(1, Lane::collective, 1);
  const auto high = ranks_[1].channel(1, Lane::collective, 0);
  const auto message = bytes_of_seed(100, 1);
  ranks_.poll_until("room", [&] { return low->send_some(message) != 0; });
  ranks_[1].begin_epoch(ranks_.view(2), ranks_.contacts());  // the lower rank lags behind
  std::vector<std::byte> got(100);
  ranks_.poll_a_while();
  (void)low->send_some(message);
  EXPECT_EQ(high->receive_some(got), 0u);
  EXPECT_TRUE(high->arrived(1).empty());
  high->consume(0);
  const auto high_now = ranks_[1].channel(1, Lane::collective, 0);
  EXPECT_NE(high, high_now);
  ranks_.poll_a_while();
  (void)low->send_some(message);
  EXPECT_EQ(high_now->receive_some(got), 0u) << "a byte of the old epoch";

  ranks_[0].begin_epoch(ranks_.view(2), ranks_.contacts());
  EXPECT_EQ(low->send_some(message), 0u);
  EXPECT_EQ(carry(*ranks_[0].channel(1, Lane::collective, 1), *high_now, message, 100, 100),
            message);
}

TEST_P(ChannelTest, WaitsForAPeerThatBeginsTheEpochLater) {
  ranks_[0].begin_epoch(ranks_.view(2), ranks_.contacts());
  const auto low = ranks_[0].channel(1, Lane::collective, 1);
  ranks_.poll_a_while();
  const auto message = bytes_of_seed(100, 1);
  EXPECT_EQ(low->send_some(message), 0u);
  ranks_[1].begin_epoch(ranks_.view(2), ranks_.contacts());
  EXPECT_EQ(carry(*low, *ranks_[1].channel(1, Lane::collective, 0), message, 100, 100), message);
  EXPECT_EQ(ranks_[1].refused(), 0u);
}

TEST_P(ChannelTest, CarriesBytesBetweenThreadsThatSleep) {
  constexpr size_t kBytes = 3'000'001;
  constexpr int kRounds = 20;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  // Each waits as an engine does: look, announce, look again, sleep.
  const auto step = [&](WireTransport& transport, const std::function<size_t()>& move) {
    size_t moved = move();
    if (moved == 0) {
      transport.prepare_to_sleep();
      moved = move();
      if (moved == 0) transport.sleep(std::chrono::seconds(5));
      transport.poll();
    }
    return moved;
  };
  const auto run = [&](Slot self, uint32_t rounds) {
    WireTransport& transport = ranks_[self];
    const auto channel = transport.channel(1, Lane::collective, 1 - self);
    for (uint32_t round = 0; round < rounds; ++round) {
      const bool sends = (round + self) % 2 == 0;
      const auto message = bytes_of_seed(round % 4 == 0 ? 1 : kBytes, round);
      std::vector<std::byte> got(message.size());
      size_t done = 0;
      while (done < message.size() && std::chrono::steady_clock::now() < until) {
        done += step(transport, [&] {
          return sends ? channel->send_some(std::span(message).subspan(done))
                       : channel->receive_some(std::span(got).subspan(done));
        });
      }
      EXPECT_EQ(done, message.size());
      EXPECT_TRUE(sends || got == message) << round;
    }
  };
  std::thread other(run, 1, kRounds);
  run(0, kRounds);
  other.join();
}

// A doorbell that rang while a sleeper drained its mailbox was once drained too. As the peer rings
// only once, all later doorbells were lost with it: both ends slept until their time was up.
TEST(SharedChannelTest, RingsAgainForWhatComesAfterALook) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 200;
  constexpr auto kLong = std::chrono::seconds(5);
  WireRanks ranks(2);
  ranks.begin_epoch(1);
  DatagramMailbox stranger;
  const net::AbstractAddress mailbox(decode_contact(ranks[1].contact())->mailbox);
  const std::vector<std::byte> junk(200);
  const auto low = ranks[0].channel(0, Lane::collective, 1);
  const auto high = ranks[1].channel(0, Lane::collective, 0);
  const std::byte byte{1};
  std::byte got{};
  ranks.poll_until("room", [&] { return low->send_some({&byte, 1}) == 1; });
  ranks.poll_until("a byte", [&] { return high->receive_some({&got, 1}) == 1; });

  std::atomic<int> posted = 0, read = 0;
  std::thread sender([&] {
    for (int round = 1; round <= kRounds; ++round) {
      // Junk to read, so that the other's next look takes a while; a byte, each time at another
      // moment of that look; and one that comes after it.
      for (int datagram = 0; datagram < 8; ++datagram) stranger.post(mailbox, junk, {});
      const auto begin = Clock::now();
      posted.store(round);
      while (Clock::now() < begin + round * std::chrono::nanoseconds(500)) continue;
      EXPECT_EQ(low->send_some({&byte, 1}), 1u);
      while (Clock::now() < begin + std::chrono::microseconds(400)) continue;
      EXPECT_EQ(low->send_some({&byte, 1}), 1u);
      while (read.load() < round) std::this_thread::yield();
    }
  });
  bool slept_through = false;
  for (int round = 1; round <= kRounds; ++round) {
    while (posted.load() < round) std::this_thread::yield();
    std::array<std::byte, 2> both;
    for (size_t received = 0; received < 2;) {
      ranks[1].prepare_to_sleep();
      received += high->receive_some(std::span(both).subspan(received));
      if (received == 2) break;
      const auto begin = Clock::now();
      if (!slept_through) ranks[1].sleep(kLong);
      slept_through = slept_through || Clock::now() - begin >= kLong;
      ranks[1].poll();
      received += high->receive_some(std::span(both).subspan(received));
    }
    read.store(round);
  }
  sender.join();
  EXPECT_FALSE(slept_through);
}

std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  switch (info.param) {
    case Way::shared_memory:
      return "SharedMemory";
    case Way::tcp:
      return "Tcp";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Over, ChannelTest, testing::Values(Way::shared_memory, Way::tcp),
                         name_of_way);

}  // namespace
}  // namespace tokenyard::collectives
