/// Ranks exchange messages over their control links, and nobody is gone before its last message.
#include "control/exchange.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "control/control_planes.hpp"
#include "control/recorded_inbox.hpp"

namespace tokenyard::control::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

/// One end of links without a control plane. The test runs it, so it decides what this process has
/// read when something happens.
class End final : private LinkListener {
 public:
  explicit End(Slot slot, uint64_t incarnation = 1, bool gives_up = false)
      : self{slot, incarnation},
        greets(!gives_up),
        links(io, net::Key("secret", "exchange test"), "127.0.0.1",
              {.purpose = net::Purpose::member,
               .job = 7,
               .self = {slot, incarnation},
               .epoch = 0,
               .sought = 0},
              5s, *this),
        exchange(links, inbox) {}

  void dial(const End& other) {
    links.want({{other.self,
                 {.member = other.self,
                  .size = 2,
                  .address = "127.0.0.1",
                  .port = other.links.port(),
                  .contact = {}}}});
  }
  void run() { io.poll(); }
  /// Sends, and hands everything to the system.
  void send(Slot to, const std::string& text) {
    exchange.send(to, message_of(text));
    for (int turn = 0; turn < 100; ++turn) run();
  }

  const Member self;
  const bool greets;  ///< else it has gone away while it connected
  RecordedInbox inbox;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  Links links;
  Exchange exchange;
  std::vector<Topic> others;  ///< frames that are not of the ranks
  bool last_came_first = false;
  mutable std::vector<Epoch> met_in;  ///< epochs that diallers have named

 private:
  std::optional<Epoch> fenced_since(const net::Introduction& who) const override {
    met_in.push_back(who.epoch);
    return {};
  }
  void linked(const Member& peer, net::Purpose) override {
    if (greets) links.send(peer, Topic::endpoint, {});
  }
  void received(const Member& peer, Topic topic, std::span<const std::byte> bytes) override {
    if (is_of_ranks(topic)) return exchange.received(peer, topic, bytes);
    others.push_back(topic);
    last_came_first = !inbox.of(peer.slot).messages.empty();
  }
  void lost(const Member&, const std::string&) override {}
  void ended(const Member& peer) override { exchange.ended(peer); }
  void unreachable(const Member&, const std::string&) override {}
  void refused(const Member&, Epoch) override {}
  void turned_away(const std::string&, const std::string&) override {}
};

template <class Condition>
bool run_both(End& one, End& other, Condition condition) {
  const auto until = steady_clock::now() + 20s;
  while (!condition()) {
    if (steady_clock::now() >= until) return false;
    one.run();
    other.run();
    std::this_thread::sleep_for(100us);
  }
  return true;
}

/// Two linked ranks, of which the second has dialled.
class TwoEnds : public ::testing::Test {
 protected:
  TwoEnds() {
    theirs->dial(mine);
    EXPECT_TRUE(run_both(mine, *theirs, [&] { return linked(*theirs); }));
    theirs->exchange.install(founders);
  }
  bool linked(const End& with) {
    return mine.links.contains(with.self) && !with.others.empty() && !mine.others.empty();
  }
  void begin() { mine.exchange.install(founders); }
  template <class Condition>
  bool run_until(Condition condition) {
    return run_both(mine, *theirs, condition);
  }
  std::optional<std::string> end() const { return mine.inbox.end_of(1); }
  std::vector<std::string> messages() const { return mine.inbox.of(1).messages; }

  End mine{0};
  std::unique_ptr<End> theirs = std::make_unique<End>(1);
  const View founders{.epoch = 1, .slots = 2, .members = {{0, 1}, {1, 1}}};
};

TEST_F(TwoEnds, MessageBeforeTheBeginningIsKept) {
  theirs->send(0, "early");
  ASSERT_TRUE(run_until([&] { return theirs->links.contains(mine.self); }));
  for (int turn = 0; turn < 100; ++turn) mine.run();
  EXPECT_THAT(messages(), SizeIs(0));
  begin();
  theirs->send(0, "later");
  EXPECT_TRUE(run_until([&] { return messages().size() == 2; }));
  EXPECT_THAT(messages(), ElementsAre("early", "later"));
}

TEST_F(TwoEnds, DiallerNamesTheEpochThatItIsIn) {
  EXPECT_THAT(mine.met_in, ElementsAre(0u));
  End later(1, 2);
  later.links.introduce_as(net::Purpose::member, 5);
  later.dial(mine);
  EXPECT_TRUE(run_both(mine, later, [&] { return mine.met_in.size() == 2; }));
  EXPECT_THAT(mine.met_in, ElementsAre(0u, 5u));
}

// It may link again and be admitted: then its messages are whole.
TEST_F(TwoEnds, PartOfAMessageOfAProcessThatIsNoMemberEndsWithItsLink) {
  begin();
  const Member newcomer{2, 7};
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const std::string first = "half of one, ", second = "another";
  mine.exchange.received(newcomer, Topic::part, bytes(first));
  mine.exchange.ended(newcomer);
  mine.exchange.install(
      {.epoch = 2, .slots = 3, .members = {founders.members[0], founders.members[1], newcomer}});
  mine.exchange.received(newcomer, Topic::last, bytes(second));
  EXPECT_THAT(mine.inbox.of(2).messages, ElementsAre("another"));
}

TEST_F(TwoEnds, LargeMessageLetsControlFramesPass) {
  begin();
  mine.others.clear();
  const std::string large(32u << 20, 'x');
  theirs->exchange.send(0, message_of(large));
  theirs->links.send(mine.self, Topic::endpoint, {});
  EXPECT_TRUE(run_until([&] { return !messages().empty(); }));
  EXPECT_EQ(messages().front().size(), large.size());
  EXPECT_THAT(mine.others, ElementsAre(Topic::endpoint));
  EXPECT_FALSE(mine.last_came_first);
}

TEST_F(TwoEnds, GoodbyeComesBehindTheLastMessage) {
  begin();
  theirs->send(0, "last words");
  theirs->exchange.say_goodbye();
  theirs->exchange.send(0, message_of("too late"));
  EXPECT_TRUE(run_until([&] { return end().has_value(); }));
  EXPECT_EQ(end(), "left");
  theirs.reset();
  for (int turn = 0; turn < 100; ++turn) mine.run();
  EXPECT_THAT(messages(), ElementsAre("last words"));
  EXPECT_EQ(mine.inbox.after_the_end(), 0);
}

/// As a process that is killed does.
TEST_F(TwoEnds, DeadPeerIsLostBehindWhatItHadSent) {
  begin();
  for (int number = 0; number < 50; ++number) theirs->send(0, fmt::format("{}", number));
  theirs.reset();
  while (!end()) mine.run();
  EXPECT_EQ(end(), "lost");
  EXPECT_THAT(messages(), SizeIs(50));
}

/// The peer's process goes on, as one that is stopped would, and holds its end open.
TEST_F(TwoEnds, ExpelledPeerIsLostBehindWhatItHadSent) {
  begin();
  for (int number = 0; number < 50; ++number) theirs->send(0, fmt::format("{}", number));
  mine.links.expel(theirs->self);
  theirs->send(0, "after the verdict");
  const auto until = steady_clock::now() + 20s;
  while (!end() && steady_clock::now() < until) mine.run();
  EXPECT_EQ(end(), "lost");
  ASSERT_GE(messages().size(), 50u);
  EXPECT_EQ(messages()[49], "49");
  theirs->send(0, "long after");
  for (int turn = 0; turn < 1000; ++turn) mine.run();
  EXPECT_EQ(mine.inbox.after_the_end(), 0);
}

/// A peer that leaves may be named by a verdict before its last message has come.
TEST_F(TwoEnds, PeerThatLeavesIsHeardToItsEnd) {
  begin();
  mine.links.part(theirs->self);
  theirs->send(0, "last words");
  theirs->exchange.say_goodbye();
  theirs->links.hang_up(mine.self);
  EXPECT_TRUE(run_until([&] { return end().has_value(); }));
  EXPECT_EQ(end(), "left");
  EXPECT_THAT(messages(), ElementsAre("last words"));
}

TEST_F(TwoEnds, PeerThatDialsAgainHasBeenLost) {
  begin();
  theirs->send(0, "from the first connection");
  ASSERT_TRUE(run_until([&] { return !messages().empty(); }));
  End again(1);  // The same process, as far as this end can see.
  again.dial(mine);
  EXPECT_TRUE(run_both(mine, again, [&] { return linked(again) && end(); }));
  EXPECT_EQ(end(), "lost");
  again.exchange.install(founders);
  again.send(0, "from another connection");
  for (int turn = 0; turn < 100; ++turn) mine.run();
  EXPECT_THAT(messages(), ElementsAre("from the first connection"));
}

/// On a busy machine a dialler gives up before the acceptor's reply, which makes the link there.
/// Its first link broke before this process knew who the members are.
TEST_F(TwoEnds, PeerThatLinksAgainBeforeTheBeginningIsHeard) {
  mine.exchange.ended(theirs->self);
  begin();
  EXPECT_EQ(end(), std::nullopt);
  theirs->send(0, "here");
  EXPECT_TRUE(run_until([&] { return !messages().empty(); }));
  EXPECT_THAT(messages(), ElementsAre("here"));
}

/// Nor is anything lost that this rank has said meanwhile: on the link, behind its end, or when
/// there is the next one already.
TEST_F(TwoEnds, PeerThatGaveUpWhileItConnectedIsNotLost) {
  for (const bool ends_first : {true, false}) {
    End rank(0), first(1, 1, true), second(1);
    first.dial(rank);
    ASSERT_TRUE(run_both(rank, first, [&] { return rank.links.contains(first.self); }));
    rank.exchange.install(founders);
    rank.send(1, "on a link that nobody reads");
    if (ends_first) {
      first.links.hang_up_on_all();
      ASSERT_TRUE(run_both(rank, first, [&] { return !rank.links.contains(first.self); }));
      rank.send(1, "without a link");
    }
    second.dial(rank);
    second.exchange.install(founders);
    const size_t sent = ends_first ? 2 : 1;
    ASSERT_TRUE(run_both(rank, second, [&] { return second.inbox.of(0).messages.size() == sent; }));
    second.send(0, "from the second connection");
    EXPECT_TRUE(run_both(rank, second, [&] { return !rank.inbox.of(1).messages.empty(); }));
    first.links.hang_up_on_all();
    for (int turn = 0; turn < 100; ++turn) {
      first.run();
      rank.run();
    }
    EXPECT_EQ(rank.inbox.end_of(1), std::nullopt);
    EXPECT_EQ(second.inbox.of(0).messages.front(), "on a link that nobody reads");
  }
}

/// As a process that is stopped right after it has parted: it has not looked for longer than a link
/// may be still.
TEST_F(TwoEnds, WhatHadArrivedIsReadThoughThisProcessStalls) {
  begin();
  theirs->send(0, "first");
  ASSERT_TRUE(run_until([&] { return !messages().empty(); }));
  mine.links.part(theirs->self);
  mine.run();
  for (int number = 0; number < 50; ++number) theirs->send(0, fmt::format("{}", number));
  std::this_thread::sleep_for(1500ms);
  EXPECT_TRUE(run_until([&] { return end().has_value(); }));
  EXPECT_THAT(messages(), SizeIs(51));
}

/// As a process that was stopped: what it says is refused before it has read that it was evicted.
TEST_F(TwoEnds, WhatHadArrivedIsReadThoughThePeerTakesNothing) {
  begin();
  // So few that they arrive at once: a system sends more only once it has an acknowledgement, and
  // drops them where the peer's data reach a closed socket first.
  for (int number = 0; number < 8; ++number) theirs->send(0, fmt::format("{}", number));
  theirs.reset();
  for (int turn = 0; turn < 3; ++turn) {
    mine.links.send({1, 1}, Topic::endpoint, {});
    for (int step = 0; step < 3; ++step) mine.io.poll_one();
    std::this_thread::sleep_for(10ms);
  }
  const auto until = steady_clock::now() + 20s;
  while (!end() && steady_clock::now() < until) mine.run();
  EXPECT_EQ(end(), "lost");
  EXPECT_THAT(messages(), SizeIs(8));
}

TEST_F(TwoEnds, PeerWhoseMessageIsRefusedIsLost) {
  begin();
  mine.inbox.accepts = false;
  theirs->send(0, "one too many");
  theirs->send(0, "another");
  EXPECT_TRUE(run_until([&] { return end().has_value(); }));
  EXPECT_EQ(end(), "lost");
  for (int turn = 0; turn < 100; ++turn) mine.run();
  EXPECT_THAT(messages(), SizeIs(1));
}

TEST_F(TwoEnds, PeerWhoseMessageNeverEndsIsLost) {
  begin();
  const auto part = std::vector<std::byte>(1u << 20);
  for (size_t sent = 0; sent <= Exchange::kMessageMax; sent += part.size()) {
    mine.exchange.received(theirs->self, Topic::part, part);
  }
  EXPECT_EQ(end(), "lost");
}

TEST_F(TwoEnds, LongestMessageIsTakenAndNoLongerOne) {
  begin();
  const std::vector<std::byte> most(Exchange::kMessageMax);
  mine.exchange.received(theirs->self, Topic::last, most);
  ASSERT_THAT(messages(), SizeIs(1));
  EXPECT_EQ(messages().front().size(), most.size());
  EXPECT_EQ(end(), std::nullopt);
  mine.exchange.received(theirs->self, Topic::part, most);
  mine.exchange.received(theirs->self, Topic::last, std::span(most).first(1));
  EXPECT_EQ(end(), "lost");
  EXPECT_THAT(messages(), SizeIs(1));
}

TEST_F(TwoEnds, ProcessOfAnotherFoundingDoesNotCount) {
  End older(1, 9);
  older.dial(mine);
  ASSERT_TRUE(run_both(mine, older, [&] { return linked(older); }));
  older.exchange.install({.epoch = 1, .slots = 2, .members = {{0, 1}, {1, 9}}});
  older.send(0, "from another job");
  for (int turn = 0; turn < 100; ++turn) mine.run();
  begin();
  EXPECT_THAT(messages(), SizeIs(0));
  theirs->send(0, "here");
  EXPECT_TRUE(run_until([&] { return !messages().empty(); }));
  EXPECT_THAT(messages(), ElementsAre("here"));
}

/// A process that takes over the slot of the second rank.
class Successor : public TwoEnds {
 protected:
  Successor() {
    begin();
    next.dial(mine);
    EXPECT_TRUE(run_both(mine, next, [&] { return linked(next); }));
    next.exchange.install(view);
  }
  void install() { mine.exchange.install(view); }

  End next{1, 2};
  const View view{.epoch = 2, .slots = 2, .members = {{0, 1}, {1, 2}}};
};

TEST_F(Successor, IsHeardOnceItIsAMember) {
  theirs->send(0, "of the first");
  theirs.reset();
  while (!end()) mine.run();
  next.send(0, "sent ahead of the verdict");
  for (int turn = 0; turn < 100; ++turn) mine.run();
  EXPECT_THAT(messages(), ElementsAre("of the first"));
  install();
  EXPECT_EQ(mine.inbox.of(1).incarnation, 2u);
  next.send(0, "behind it");
  EXPECT_TRUE(run_both(mine, next, [&] { return messages().size() == 2; }));
  EXPECT_THAT(messages(), ElementsAre("sent ahead of the verdict", "behind it"));
  EXPECT_EQ(end(), std::nullopt);
}

/// The verdict comes before this process has read what the first one had sent.
TEST_F(Successor, IsHeardBehindAllThatTheFirstHadSent) {
  std::vector<std::string> all;
  mine.inbox.before_each = [&](const std::string& text) { all.push_back(text); };
  next.send(0, "of the next");
  for (int turn = 0; turn < 100; ++turn) mine.run();
  for (int number = 0; number < 50; ++number) theirs->send(0, fmt::format("{}", number));
  install();
  EXPECT_EQ(mine.inbox.of(1).incarnation, 1u);
  mine.links.expel(theirs->self);
  EXPECT_TRUE(run_both(mine, next, [&] { return !messages().empty() && all.size() == 51; }));
  EXPECT_EQ(all.back(), "of the next");
  EXPECT_EQ(all[49], "49");
  EXPECT_EQ(mine.inbox.before_the_end(), 0);
  EXPECT_EQ(mine.inbox.after_the_end(), 0);
}

TEST_F(Successor, NeverGetsLatePartsOfTheFirst) {
  const auto part = [](const std::string& text) { return *message_of(text); };
  mine.exchange.received(theirs->self, Topic::part, part("half of "));
  mine.exchange.ended(theirs->self);
  EXPECT_EQ(end(), "lost");
  install();
  mine.exchange.received(theirs->self, Topic::last, part("the first"));
  mine.exchange.received(theirs->self, Topic::goodbye, {});
  mine.exchange.ended(theirs->self);
  EXPECT_EQ(end(), std::nullopt);
  mine.exchange.received(next.self, Topic::last, part("of the next"));
  EXPECT_THAT(messages(), ElementsAre("of the next"));
}

/// A process that was admitted and lost again before the first one had ended.
TEST_F(Successor, MayBeSucceededBeforeItWasHeard) {
  install();
  next.send(0, "of the next");
  for (int turn = 0; turn < 100; ++turn) mine.run();
  mine.exchange.install({.epoch = 3, .slots = 2, .members = {{0, 1}, {1, 3}}});
  mine.exchange.ended(theirs->self);
  EXPECT_EQ(mine.inbox.of(1).incarnation, 3u);
  EXPECT_THAT(messages(), SizeIs(0));
}

TEST_F(Successor, MayLinkAgainWhileItWaits) {
  mine.exchange.ended(next.self);
  mine.exchange.ended(theirs->self);
  install();
  EXPECT_EQ(end(), std::nullopt);
  next.send(0, "admitted");
  EXPECT_TRUE(run_both(mine, next, [&] { return messages().size() == 1; }));
}

TEST_F(Successor, ThatIsNeverAdmittedIsKeptWithinALimit) {
  const auto message = std::vector<std::byte>(Exchange::kMessageMax / 2);
  for (int number = 0; number < 5; ++number)
    mine.exchange.received(next.self, Topic::last, message);
  mine.exchange.ended(theirs->self);
  install();
  EXPECT_EQ(mine.inbox.of(1).messages.size(), 4u);
  EXPECT_EQ(end(), "lost");
}

/// Control planes whose ranks exchange messages.
class TalkingControlPlanes : public ControlPlane {
 protected:
  void found(uint32_t slots) {
    inboxes = std::vector<RecordedInbox>(slots);
    ranks.resize(slots);
    on_every_rank(slots, [&](uint32_t slot) {
      ranks[slot] = std::make_unique<Rank>(options(slot, slots), &inboxes[slot]);
      ranks[slot]->found();
      ranks[slot]->control->await_links();
    });
  }
  void send(Slot from, Slot to, const std::string& text) {
    ranks[from]->control->send(to, message_of(text));
  }

  std::vector<RecordedInbox> inboxes;
  std::vector<std::unique_ptr<Rank>> ranks;
};

TEST_F(TalkingControlPlanes, EachHearsAllOthersInOrder) {
  found(4);
  on_every_rank(4, [&](uint32_t rank) {
    for (int number = 0; number < 100; ++number) {
      for (Slot to = 0; to < 4; ++to) {
        if (to != rank) send(rank, to, fmt::format("{} to {}: {}", rank, to, number));
      }
    }
  });
  for (Slot slot = 0; slot < 4; ++slot) {
    for (Slot from = 0; from < 4; ++from) {
      if (from == slot) continue;
      ASSERT_TRUE(
          inboxes[slot].wait([&] { return inboxes[slot].of(from).messages.size() == 100; }));
      for (int number = 0; number < 100; ++number) {
        EXPECT_EQ(inboxes[slot].of(from).messages[static_cast<size_t>(number)],
                  fmt::format("{} to {}: {}", from, slot, number));
      }
    }
  }
}

TEST_F(TalkingControlPlanes, RankThatStopsHasLeft) {
  found(3);
  send(2, 0, "last words");
  ranks[2]->control->stop();
  for (Slot slot : {0u, 1u}) {
    EXPECT_TRUE(inboxes[slot].wait([&] { return inboxes[slot].end_of(2).has_value(); }));
    EXPECT_EQ(inboxes[slot].end_of(2), "left");
    EXPECT_TRUE(ranks[slot]->recorder.wait_for_members(2));
  }
  EXPECT_THAT(inboxes[0].of(2).messages, ElementsAre("last words"));
  EXPECT_EQ(inboxes[2].evictions(), 0);
}

/// Rank 0 reads slowly, and there is more than what the system holds: rank 0 has agreed that rank 1
/// leaves long before it has read the last of it.
TEST_F(TalkingControlPlanes, LastMessagesAreSentToTheirEnd) {
  constexpr size_t kMessages = 60;
  found(2);
  inboxes[0].before_each = [](const std::string&) { std::this_thread::sleep_for(50ms); };
  const std::string large(1u << 20, 'x');
  for (size_t message = 0; message < kMessages; ++message) send(1, 0, large);
  ranks[1]->control->stop();
  EXPECT_TRUE(inboxes[0].wait([&] { return inboxes[0].end_of(1).has_value(); }));
  EXPECT_EQ(inboxes[0].end_of(1), "left");
  EXPECT_THAT(inboxes[0].of(1).messages, SizeIs(kMessages));
}

/// Rank 0 reads slowly, so the others have agreed that rank 2 is lost before it has read all that
/// rank 2 had sent.
TEST_F(TalkingControlPlanes, VerdictOvertakesNothingThatTheLostRankHadSent) {
  constexpr size_t kMessages = 200;
  found(3);
  inboxes[0].before_each = [](const std::string&) { std::this_thread::sleep_for(1ms); };
  for (size_t number = 0; number < kMessages; ++number) {
    send(2, 0, fmt::format("{}", number));
    send(2, 1, fmt::format("{}", number));
  }
  ASSERT_TRUE(inboxes[1].wait([&] { return inboxes[1].of(2).messages.size() == kMessages; }));
  ranks[1]->control->abandon(ranks[2]->control->self(), ranks[1]->control->view().epoch);
  ASSERT_TRUE(ranks[0]->recorder.wait_for_members(2));
  const size_t read_before = inboxes[0].of(2).messages.size();
  ASSERT_TRUE(inboxes[0].wait([&] { return inboxes[0].end_of(2).has_value(); }));
  EXPECT_EQ(inboxes[0].end_of(2), "lost");
  EXPECT_THAT(inboxes[0].of(2).messages, SizeIs(kMessages)) << read_before << " before the verdict";
  EXPECT_EQ(inboxes[0].after_the_end(), 0);
  EXPECT_TRUE(inboxes[2].wait([&] { return inboxes[2].evictions() == 1; }));
}

TEST_F(TalkingControlPlanes, NewcomerHearsAllAndIsHeard) {
  found(3);
  send(2, 0, "before");
  ASSERT_TRUE(inboxes[0].wait([&] { return inboxes[0].of(2).messages.size() == 1; }));
  ranks[2]->control->stop();
  ASSERT_TRUE(ranks[0]->recorder.wait_for_members(2));
  RecordedInbox inbox;
  Rank newcomer(options(2, 3), &inbox);
  ranks[0]->control->admit({2}, ranks[0]->control->view().epoch);
  newcomer.join();
  const Member member = newcomer.control->self();
  for (Rank* rank : {ranks[0].get(), ranks[1].get(), &newcomer}) {
    ASSERT_TRUE(
        rank->recorder.wait_for_view([&](const View& view) { return view.contains(member); }));
    rank->control->await_links();
  }
  for (const Slot slot : {0u, 1u}) {
    send(slot, 2, fmt::format("from {}", slot));
    newcomer.control->send(slot, message_of("from the newcomer"));
  }
  for (const Slot slot : {0u, 1u}) {
    EXPECT_TRUE(inbox.wait([&] { return inbox.of(slot).messages.size() == 1; }));
    EXPECT_TRUE(inboxes[slot].wait([&] { return inboxes[slot].of(2).messages.size() == 1; }));
    EXPECT_THAT(inboxes[slot].of(2).messages, ElementsAre("from the newcomer"));
    EXPECT_EQ(inboxes[slot].of(2).incarnation, member.incarnation);
  }
}

/// The members may have excused it in the epoch that the caller has not heard of yet.
TEST_F(TalkingControlPlanes, NobodyIsAbandonedForAnEarlierEpoch) {
  found(4);
  const control::Epoch before = ranks[0]->control->view().epoch;
  ranks[0]->control->abandon(ranks[3]->control->self(), before);
  ASSERT_TRUE(ranks[0]->recorder.wait_for_members(3));
  // The participant hears of a view before `view` tells it.
  const auto view = [&] { return ranks[0]->recorder.last().next; };
  const control::Epoch now = view().epoch;
  ranks[0]->control->abandon(ranks[2]->control->self(), before);
  // The epoch ends for a reason that evicts nobody, and would take a wish along.
  ranks[0]->control->report_timeout({.slot = 1, .group = 0, .sequence = 1}, now);
  ASSERT_TRUE(ranks[0]->recorder.wait_for_view([&](const View& next) { return next.epoch > now; }));
  EXPECT_EQ(view().members.size(), 3u);
  ranks[0]->control->abandon(ranks[1]->control->self(), view().epoch);
  ASSERT_TRUE(ranks[0]->recorder.wait_for_members(2));
  EXPECT_TRUE(view().at(2));
}

TEST_F(TalkingControlPlanes, EvictedRankHearsOfItBeforeItMissesTheOthers) {
  found(3);
  ranks[0]->control->abandon(ranks[2]->control->self(), ranks[0]->control->view().epoch);
  EXPECT_TRUE(inboxes[2].wait([&] { return inboxes[2].evictions() == 1; }));
  EXPECT_TRUE(ranks[2]->recorder.wait_to_be_fenced());
  EXPECT_FALSE(inboxes[2].end_of(0));
  EXPECT_FALSE(inboxes[2].end_of(1));
}

}  // namespace
}  // namespace tokenyard::control::testing
