/// Messages and landings of one peer, in any order.
#include "libfabric/peer_inbox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "net/protocol_error.hpp"

namespace tokenyard::libfabric {
namespace {

constexpr MemoryKey kKey = 0x901;
constexpr uint32_t kQueues = 2, kCredits = 16;

struct Told final : InboxListener {
  void refuse(uint32_t, uint32_t, NetworkCheck check, const NetworkRefusal&) override {
    refused = check;
  }
  void answer_settled(uint32_t, uint32_t, uint32_t turn) override { settled = turn; }
  void credited(uint32_t) override { ++credits; }
  void released(uint32_t, MemoryKey) override { ++releases; }
  void take(uint32_t, const Message& message) override { others.push_back(message.kind); }

  std::optional<NetworkCheck> refused;
  uint32_t settled = 0, credits = 0, releases = 0;
  std::vector<MessageKind> others;
};

class Inbox : public ::testing::Test {
 protected:
  Inbox() { regions_.open(kKey, std::as_writable_bytes(std::span(memory_))); }
  void receive(Message message, uint32_t sequence) {
    message.sequence = sequence;
    inbox_.receive(message);
  }
  static Message signal(uint32_t puts, uint32_t group, uint16_t queue = 0) {
    return {.kind = MessageKind::signal,
            .queue = queue,
            .key = kKey,
            .puts = puts,
            .group = group,
            .addend = 1};
  }

  std::array<uint64_t, 8> memory_{};
  RegisteredRegions regions_;
  Told told_;
  PeerInbox inbox_{{.peer = 1, .queues = kQueues, .credits = kCredits}, regions_, told_};
};

/// The host does not reach it.
TEST_F(Inbox, MemoryOfAGpuTakesLongPutsAlone) {
  regions_.open(kKey, std::as_writable_bytes(std::span(memory_)), false);
  receive({.kind = MessageKind::put_inline, .inline_bytes = 8, .key = kKey}, 0);
  EXPECT_EQ(told_.refused, NetworkCheck::request);
  told_.refused.reset();
  receive(signal(0, 0, 1), 1);
  EXPECT_EQ(told_.refused, NetworkCheck::request);
  EXPECT_EQ(memory_, decltype(memory_){});
}

TEST_F(Inbox, ASignalWaitsForThePutsOfItsOwnGroup) {
  receive(signal(1, 0), 0);
  receive(signal(1, 1), 1);
  // The later put overtakes the earlier one.
  inbox_.landed(0, 1);
  EXPECT_EQ(memory_[0], 0u);
  EXPECT_EQ(told_.credits, 0u) << "the credit of a message that waits is not free";
  inbox_.landed(0, 0);
  EXPECT_EQ(memory_[0], 2u);
  EXPECT_EQ(told_.credits, 2u);
}

TEST_F(Inbox, QueuesDoNotWaitForOneAnother) {
  receive(signal(1, 0, 0), 0);
  receive(signal(0, 0, 1), 1);
  EXPECT_EQ(memory_[0], 1u);
}

TEST_F(Inbox, MessagesApplyInTheOrderOfTheirSequence) {
  Message put{.kind = MessageKind::put_inline, .inline_bytes = 8, .key = kKey, .offset = 8};
  put.inlined[0] = std::byte{1};
  Message later = put;
  later.inlined[0] = std::byte{2};
  receive(later, 2);
  receive(signal(0, 0), 1);
  EXPECT_EQ(memory_[0], 0u);
  receive(put, 0);
  EXPECT_EQ(memory_[0], 1u);
  EXPECT_EQ(memory_[1], 2u);
}

TEST_F(Inbox, ARegionIsReleasedBehindTheFencesOfAllQueues) {
  Message fence{.kind = MessageKind::fence, .queue = 1, .puts = 1, .group = 0};
  receive(fence, 0);
  receive({.kind = MessageKind::released, .key = kKey}, 1);
  EXPECT_EQ(told_.releases, 0u);
  inbox_.landed(1, 0);
  EXPECT_EQ(told_.releases, 1u);
}

TEST_F(Inbox, PutsThatWillNotComeCountAsLanded) {
  receive(signal(2, 0), 0);
  inbox_.landed(0, 0);
  receive({.kind = MessageKind::skipped, .turn = 1, .group = 0}, 1);
  EXPECT_EQ(memory_[0], 1u);
}

TEST_F(Inbox, MessagesOutOfTheirWindowAreRefused) {
  EXPECT_THROW(receive(signal(0, 0), kCredits), net::ProtocolError);
}

TEST_F(Inbox, AMessageThatComesTwiceIsRefused) {
  receive(signal(0, 0), 1);
  EXPECT_THROW(receive(signal(0, 0), 1), net::ProtocolError);
}

/// Every order of arrival has the same effect, and no signal comes before its puts.
TEST_F(Inbox, AnyOrderOfArrivalGivesTheSame) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    memory_ = {};
    Told told;
    PeerInbox inbox({.peer = 1, .queues = kQueues, .credits = kCredits}, regions_, told);
    // Groups of two puts each, with a signal behind.
    struct Event {
      std::optional<Message> message;
      uint32_t group = 0;
    };
    std::vector<Event> events;
    for (uint32_t group = 0; group < kCredits; ++group) {
      Message message = signal(2, group);
      message.sequence = group;
      events.push_back({message});
      events.push_back({std::nullopt, group});
      events.push_back({std::nullopt, group});
    }
    std::ranges::shuffle(events, random);
    std::array<uint32_t, kCredits> landed{};
    for (const Event& event : events) {
      if (event.message) {
        inbox.receive(*event.message);
      } else {
        ++landed[event.group];
        inbox.landed(0, event.group);
      }
      for (uint32_t group = 0; group < memory_[0]; ++group)
        ASSERT_EQ(landed[group], 2u) << "seed " << seed;
    }
    ASSERT_EQ(memory_[0], kCredits) << "seed " << seed;
  }
}

TEST(Message, DecodesWhatEncodeReturnsAndNothingElse) {
  Message message{.kind = MessageKind::refusal,
                  .queue = 3,
                  .rank = 4,
                  .token = 5,
                  .sequence = 6,
                  .credits = 7,
                  .credits_for_credits = 1,
                  .check = NetworkCheck::alignment,
                  .refusal = {.region = 1, .expected = 2, .seen = 3}};
  auto bytes = encode(message);
  EXPECT_EQ(encode(decode_message(bytes)), bytes);
  bytes.back() = std::byte{1};
  EXPECT_THROW(decode_message(bytes), net::ProtocolError);
  message.kind = static_cast<MessageKind>(99);
  EXPECT_THROW(decode_message(encode(message)), net::ProtocolError);
}

}  // namespace
}  // namespace tokenyard::libfabric
