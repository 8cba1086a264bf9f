/// Frames of a peer in any order that several paths allow, and frames that no honest peer sends.
#include "fabric/proxy/peer_receiver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "net/protocol_error.hpp"

namespace tokenyard {
namespace {

constexpr uint32_t kPeer = 4, kEpoch = 11;
constexpr MemoryKey kKey = 0x77 << 8 | 2;

/// A receiver over two paths and two queues, and what it reports.
class Receiving : public ::testing::Test, private ReceiverListener {
 protected:
  explicit Receiving(bool acknowledged = false)
      : memory_(4096 / 8),
        receiver_(
            {.peer = kPeer, .epoch = kEpoch, .queues = 2, .paths = 2, .acknowledged = acknowledged},
            regions_, static_cast<ReceiverListener&>(*this)) {
    regions_.open(kKey, std::as_writable_bytes(std::span(memory_)));
  }

  PutFrame put(uint32_t queue, uint64_t offset, uint32_t bytes) {
    return {.kind = PutFrameKind::put,
            .queue = static_cast<uint16_t>(queue),
            .key = kKey,
            .bytes = bytes,
            .offset = offset,
            .whole_offset = offset,
            .whole_bytes = bytes};
  }
  PutFrame signal(uint32_t queue, uint64_t offset, PathCounts counts) {
    return {.kind = PutFrameKind::signal,
            .queue = static_cast<uint16_t>(queue),
            .key = kKey,
            .offset = offset,
            .addend = 1,
            .counts = counts};
  }
  /// Sends a frame and its payload, all bytes of which are `fill`, over a path.
  void send(uint32_t path, PutFrame frame, uint8_t fill = 0) {
    std::vector<std::byte> payload(frame.bytes, std::byte{fill});
    send_header(path, frame);
    send_bytes(path, payload);
  }
  void send_header(uint32_t path, PutFrame frame) {
    frame.epoch = kEpoch;
    frame.sequence = sequence_[path]++;
    send_bytes(path, encode(frame));
  }
  void send_bytes(uint32_t path, std::span<const std::byte> bytes) {
    waiting_[path].insert(waiting_[path].end(), bytes.begin(), bytes.end());
    deliver(path);
  }
  /// Delivers what the path has room for, in pieces of random length.
  void deliver(uint32_t path) {
    std::vector<std::byte>& bytes = waiting_[path];
    while (!bytes.empty()) {
      size_t most = 1 + random_() % 300, taken = 0;
      for (const auto& room : receiver_.room(path)) {
        const size_t count = std::min({room.size(), bytes.size() - taken, most - taken});
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(taken), count, room.begin());
        taken += count;
        if (count < room.size()) break;
      }
      if (taken == 0) return;  // It stands still.
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
      receiver_.received(path, taken);
      receiver_.resume();
    }
  }
  void deliver_all() {
    for (int round = 0; round < 4; ++round)
      for (uint32_t path = 0; path < 2; ++path) deliver(path);
  }
  uint8_t byte(size_t at) const { return reinterpret_cast<const uint8_t*>(memory_.data())[at]; }
  uint64_t word(size_t at) const { return memory_[at / 8]; }

  struct Refusal {
    uint32_t queue;
    NetworkCheck check;
    uint64_t expected, seen;
    bool operator==(const Refusal&) const = default;
  };
  std::vector<Refusal> refusals_;
  std::vector<uint32_t> answers_;
  std::vector<uint64_t> memory_;
  RegisteredRegions regions_;
  PeerReceiver receiver_;
  uint32_t sequence_[2] = {0, 0};
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> closed_;

 private:
  void refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
              const NetworkRefusal& refusal) override {
    EXPECT_EQ(peer, kPeer);
    EXPECT_EQ(refusal.region, region_of_key(kKey));
    refusals_.push_back({queue, check, refusal.expected, refusal.seen});
  }
  void answer_settled(uint32_t, uint32_t, uint32_t turn) override { answers_.push_back(turn); }
  void refused(uint32_t, uint32_t, NetworkCheck, const NetworkRefusal&) override {}
  void settled(uint32_t, uint32_t, uint32_t) override {}
  void closed(uint32_t, uint32_t path, uint32_t life, uint32_t count) override {
    closed_.emplace_back(path, life, count);
  }

 protected:
  /// Begins the next life of a path; bytes that it had not delivered are lost.
  void lose(uint32_t path) {
    receiver_.reopen(path);
    waiting_[path].clear();
    sequence_[path] = 0;
  }

 private:
  std::vector<std::byte> waiting_[2];
  std::minstd_rand random_{7};
};

TEST_F(Receiving, ASignalWaitsForThePutsOnTheOtherPath) {
  send(0, signal(0, 512, {0, 1}));
  EXPECT_EQ(word(512), 0u) << "the put has not landed";
  PutFrame long_put = put(0, 1024, 2000);
  send_header(1, long_put);
  const std::vector<std::byte> half(1000, std::byte{9});
  send_bytes(1, half);
  EXPECT_EQ(word(512), 0u) << "half of the put has landed";
  send_bytes(1, half);
  EXPECT_EQ(word(512), 1u);
  EXPECT_EQ(byte(1024), 9);
  EXPECT_EQ(byte(1024 + 1999), 9);
  EXPECT_EQ(byte(1024 + 2000), 0);
}

/// A later put may have overtaken the earlier one, so a plain count would not do.
TEST_F(Receiving, APutBehindASignalDoesNotStandForOneBeforeIt) {
  send(0, put(0, 1024, 8), 1);
  send(0, put(0, 1032, 8), 2);  // Behind the signal in its queue.
  send(0, signal(0, 512, {1, 1}));
  EXPECT_EQ(word(512), 0u);
  send(1, put(0, 1040, 8), 3);
  EXPECT_EQ(word(512), 1u);
}

TEST_F(Receiving, QueuesKnowNothingOfOneAnother) {
  send(1, put(1, 1024, 8), 1);
  send(0, signal(0, 512, {0, 0}));
  EXPECT_EQ(word(512), 1u);
  send(0, signal(0, 512, {0, 1}));
  EXPECT_EQ(word(512), 1u) << "the put was another queue's";
}

TEST_F(Receiving, PathsThatStandStillDoNotWaitForOneAnother) {
  send(0, put(0, 1024, 8), 1);
  send(0, signal(0, 512, {1, 1}));  // Waits for path 1,
  send(1, signal(1, 520, {0, 0}));
  send(1, put(0, 1032, 8), 1);      // which has it here.
  send(1, signal(1, 520, {1, 0}));  // Waits for path 0,
  send(0, put(1, 1040, 8), 1);      // which has it here.
  deliver_all();
  EXPECT_EQ(word(512), 1u);
  EXPECT_EQ(word(520), 2u);
}

TEST_F(Receiving, AnswersOnceAllHasTakenEffect) {
  PutFrame question{.kind = PutFrameKind::settle, .turn = 5, .counts = {0, 1}};
  send(0, question);
  EXPECT_TRUE(answers_.empty());
  send(1, put(0, 1024, 8), 1);
  EXPECT_EQ(answers_, std::vector<uint32_t>{5});
}

TEST_F(Receiving, AKeyThatOpensNothingIsRefusedAndNotRevealed) {
  PutFrame frame = put(0, 1024, 100);
  frame.key ^= 0x100;
  send(0, frame, 1);
  const std::vector<Refusal> told = {{0, NetworkCheck::target, 0, frame.key}};
  EXPECT_EQ(refusals_, told);
  // Later requests of the queue go nowhere, and are not told again.
  send(0, put(0, 1024, 100), 1);
  send(0, signal(0, 512, {9, 9}));
  EXPECT_EQ(refusals_, told);
  EXPECT_EQ(byte(1024), 0);
  EXPECT_EQ(word(512), 0u);
  send(0, put(1, 1024, 100), 1);
  EXPECT_EQ(byte(1024), 1) << "the other queue goes on";
}

TEST_F(Receiving, NoPartLandsOfAPutThatDoesNotFit) {
  PutFrame first = put(0, 4000, 90);
  first.whole_bytes = 97;  // Ends one byte behind the region.
  send(0, first, 1);
  const std::vector<Refusal> told = {{0, NetworkCheck::target_range, 4096, 4097}};
  EXPECT_EQ(refusals_, told);
  EXPECT_EQ(byte(4000), 0);
}

TEST_F(Receiving, ASignalToNoWordIsRefused) {
  send(0, signal(0, 516, {}));
  send(0, signal(1, 4096, {}));
  const std::vector<Refusal> told = {{0, NetworkCheck::alignment, 0, 4},
                                     {1, NetworkCheck::target_range, 4096, 4104}};
  EXPECT_EQ(refusals_, told);
}

TEST_F(Receiving, TheRestOfAPutIntoWithdrawnMemoryGoesNowhere) {
  send_header(0, put(0, 0, 4000));
  const std::vector<std::byte> half(2000, std::byte{1});
  send_bytes(0, half);
  regions_.close(region_of_key(kKey));
  receiver_.withdraw(region_of_key(kKey));
  std::ranges::fill(memory_, 0);
  send_bytes(0, half);
  EXPECT_TRUE(std::ranges::all_of(memory_, [](uint64_t word) { return word == 0; }));
  const std::vector<Refusal> told = {{0, NetworkCheck::target, 0, kKey}};
  EXPECT_EQ(refusals_, told);
}

TEST_F(Receiving, FramesOutOfPlaceEndTheConnection) {
  ++sequence_[0];
  EXPECT_THROW(send(0, put(0, 0, 8)), net::ProtocolError);
  EXPECT_THROW(send(1, put(2, 0, 8)), net::ProtocolError) << "there are two queues";
}

TEST_F(Receiving, AFrameOfAnotherEpochEndsTheConnection) {
  PutFrame frame = put(0, 0, 0);
  frame.epoch = kEpoch - 1;
  const auto bytes = encode(frame);
  EXPECT_THROW(send_bytes(0, bytes), net::ProtocolError);
}

TEST_F(Receiving, ACountOfNoPathEndsTheConnection) {
  EXPECT_THROW(send(0, signal(0, 512, {0, 0, 1})), net::ProtocolError);
}

class ReceivingFromLostPaths : public Receiving {
 protected:
  ReceivingFromLostPaths() : Receiving(true) {}
};

/// The signal stands before the put that it waits for, on the path that is left.
TEST_F(ReceivingFromLostPaths, APutThatIsSentAgainBehindItsSignalLands) {
  send(0, put(0, 1024, 8), 1);
  EXPECT_EQ(receiver_.taken(0), 1u);
  PutFrame lost = put(0, 2048, 400);
  send_header(0, lost);
  send_bytes(0, std::vector<std::byte>(100, std::byte{2}));
  EXPECT_EQ(receiver_.taken(0), 1u) << "a part has come";
  lose(0);
  send(1, signal(0, 512, {2, 0}));
  send(1, put(1, 3072, 8), 3);
  EXPECT_EQ(byte(3072), 3) << "the path stands still";
  EXPECT_EQ(word(512), 0u);
  lost.origin = 1;
  send(1, lost, 2);
  EXPECT_EQ(byte(2048 + 399), 2);
  EXPECT_EQ(word(512), 1u);
  EXPECT_EQ(receiver_.taken(1), 3u);
}

TEST_F(ReceivingFromLostPaths, APathBeginsAnew) {
  for (uint32_t life = 0; life < 3; ++life) {
    send(0, put(0, 1024, 8), 1);
    send(0, signal(0, 512, {life + 1, 0}));
    EXPECT_EQ(receiver_.taken(0), 2u);
    EXPECT_EQ(word(512), life + 1);
    lose(0);
    EXPECT_EQ(receiver_.taken(0), 0u);
  }
  send_header(1, {.kind = PutFrameKind::closed, .turn = 7, .path = 0, .life = 2});
  EXPECT_EQ(closed_, (decltype(closed_){{0, 2, 7}}));
}

TEST_F(ReceivingFromLostPaths, AcknowledgementsAreNotAcknowledged) {
  send(0, put(0, 1024, 8), 1);
  const uint32_t worth = receiver_.worth_acknowledging(0);
  send_header(0, {.kind = PutFrameKind::taken, .turn = 7, .path = 0});
  EXPECT_EQ(receiver_.worth_acknowledging(0), worth);
  send_header(0, {.kind = PutFrameKind::closed, .turn = 7, .path = 1});
  EXPECT_EQ(receiver_.worth_acknowledging(0), worth + 1);
}

/// A peer that acknowledges nothing could have any number of them wait.
TEST_F(ReceivingFromLostPaths, SignalsThatWaitAreNoMoreThanQueuesHold) {
  const auto flood = [&] {
    for (uint32_t each = 0; each <= 2 * QueuePair::kSlots * 2; ++each)
      send(0, signal(0, 512, {0, 1}));
  };
  EXPECT_THROW(flood(), net::ProtocolError);
}

TEST_F(Receiving, NothingIsSentAgainWherePathsCannotBeLost) {
  PutFrame again = put(0, 1024, 8);
  again.origin = 2;
  EXPECT_THROW(send_header(0, again), net::ProtocolError);
  EXPECT_THROW(send_header(1, {.kind = PutFrameKind::closed, .path = 0}), net::ProtocolError);
}

}  // namespace
}  // namespace tokenyard
