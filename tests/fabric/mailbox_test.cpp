#include "fabric/mailbox.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace tokenyard {
namespace {

struct Noting final : Mailbox::Watcher {
  void went(uint32_t, PeerState) override { heard->push_back(number); }
  void said(uint32_t, const Message&) override { heard->push_back(number); }
  std::vector<size_t>* heard = nullptr;
  size_t number = 0;
};

// Their words are written in this order. In the order of addresses, a seed of the simulator ran
// differently in a process that had run others.
TEST(Mailbox, TellsWatchersInTheOrderInWhichTheyBegan) {
  Mailbox mailbox(2);
  std::vector<size_t> heard;
  std::array<Noting, 8> watchers;
  const std::vector<size_t> order{5, 0, 7, 2, 1, 6, 3, 4};
  for (const size_t number : order) {
    watchers[number].heard = &heard;
    watchers[number].number = number;
    mailbox.watch(watchers[number]);
  }
  mailbox.mark(1, PeerState::lost);
  EXPECT_EQ(heard, order);
  heard.clear();
  mailbox.unwatch(watchers[7]);
  mailbox.put(0, {.kind = MessageKind::gone_on});
  EXPECT_EQ(heard, (std::vector<size_t>{5, 0, 2, 1, 6, 3, 4}));
}

std::optional<uint64_t> taken(Mailbox& mailbox, uint32_t generation, uint64_t sequence) {
  const auto message = mailbox.take(0, generation, sequence);
  return message ? std::optional(message->sequence) : std::nullopt;
}

TEST(Mailbox, AMessageIsTakenByItsCallAlone) {
  Mailbox mailbox(2);
  for (const uint64_t sequence : {1, 2, 4})
    EXPECT_TRUE(mailbox.put(0, {.generation = 7, .sequence = sequence}));
  EXPECT_EQ(taken(mailbox, 7, 2), 2u);  // The first one is of a call that was given up.
  EXPECT_EQ(taken(mailbox, 7, 1), std::nullopt);
  EXPECT_EQ(taken(mailbox, 7, 3), std::nullopt) << "its message has not come";
  EXPECT_EQ(taken(mailbox, 6, 4), std::nullopt) << "the message is of a later world";
  EXPECT_EQ(taken(mailbox, 7, 4), 4u);
  EXPECT_TRUE(mailbox.put(0, {.generation = 7, .sequence = 5}));
  EXPECT_EQ(taken(mailbox, 8, 1), std::nullopt);
  EXPECT_EQ(taken(mailbox, 7, 5), std::nullopt) << "an older world's are dropped";
}

struct Remembering final : Mailbox::Watcher {
  void went(uint32_t slot, PeerState) override { gone.push_back(slot); }
  void said(uint32_t slot, const Message& message) override {
    asked.emplace_back(slot, message.generation);
  }
  std::vector<uint32_t> gone;
  std::vector<std::pair<uint32_t, uint32_t>> asked;
};

TEST(Mailbox, TellsAWatcherOfAllThatHasHappened) {
  Mailbox mailbox(3);
  for (const uint32_t slot : {0u, 2u}) {
    mailbox.mark(slot, PeerState::left);
    mailbox.put(slot, {.kind = MessageKind::rebuild, .generation = 10 + slot});
  }
  Remembering late;
  mailbox.watch(late);
  EXPECT_EQ(late.gone, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(late.asked, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 10}, {2, 12}}));
}

}  // namespace
}  // namespace tokenyard
