#include "fabric/mailbox.hpp"

#include <gtest/gtest.h>

#include <array>
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

}  // namespace
}  // namespace tokenyard
