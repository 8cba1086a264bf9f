#include <gmock/gmock.h>

#include <numeric>

#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

using Outcomes = std::vector<std::shared_ptr<Outcome>>;

std::vector<float> counted(size_t elements, float first) {
  std::vector<float> values(elements);
  std::iota(values.begin(), values.end(), first);
  return values;
}

ConstArray sent(const std::vector<float>& values) {
  return {values.data(), values.size(), DataType::float32};
}
Array into(std::vector<float>& values) {
  return {values.data(), values.size(), DataType::float32};
}

void run(EngineWorld& world, const Outcomes& outcomes) {
  for (int round = 0; round < 100000; ++round) {
    bool all = true;
    for (const auto& outcome : outcomes) all = all && outcome->done();
    if (all) return;
    world.poll(1);
  }
  FAIL() << "messages do not arrive";
}

/// Elements of a message, and the eager limit of its sender.
struct Case {
  size_t elements = 0, eager_limit = eager_limit_max;
};
class Messages : public ::testing::TestWithParam<Case> {};

TEST_P(Messages, ArriveWhoeverComesFirst) {
  const auto [elements, limit] = GetParam();
  for (const bool sender_first : {true, false}) {
    EngineWorld world({.ranks = 2, .ring_bytes = 3001});
    const std::vector<float> values = counted(elements, 1);
    std::vector<float> got(elements);
    Outcomes outcomes;
    const auto send = [&] {
      outcomes.push_back(world.engine(0).send(0, sent(values), 1, 5, 1s, limit));
    };
    const auto receive = [&] {
      outcomes.push_back(world.engine(1).receive(0, into(got), 0, 5, 1s));
    };
    if (sender_first)
      send();
    else
      receive();
    world.poll(20);
    if (sender_first)
      receive();
    else
      send();
    run(world, outcomes);
    for (const auto& outcome : outcomes) EXPECT_EQ(error_text(*outcome), "");
    EXPECT_EQ(got, values);
    EXPECT_EQ(outcomes[sender_first ? 1 : 0]->source(), 0u);
  }
}

TEST_P(Messages, OfOneTagKeepTheirOrderAndTagsDoNot) {
  const auto [elements, limit] = GetParam();
  EngineWorld world({.ranks = 2, .ring_bytes = 3001});
  const std::vector<float> first = counted(elements, 1), second = counted(elements, 2);
  const std::vector<float> other = counted(elements, 3);
  std::vector<float> one(elements), two(elements), three(elements);
  Outcomes outcomes = {world.engine(0).send(0, sent(first), 1, 7, 1s, limit),
                       world.engine(0).send(0, sent(second), 1, 7, 1s, limit),
                       world.engine(0).send(0, sent(other), 1, 8, 1s, limit)};
  world.poll(20);
  outcomes.push_back(world.engine(1).receive(0, into(three), 0, 8, 1s));
  outcomes.push_back(world.engine(1).receive(0, into(one), 0, 7, 1s));
  outcomes.push_back(world.engine(1).receive(0, into(two), 0, 7, 1s));
  run(world, outcomes);
  EXPECT_EQ(one, first);
  EXPECT_EQ(two, second);
  EXPECT_EQ(three, other);
}

TEST_P(Messages, ComeFromAnybody) {
  const auto [elements, limit] = GetParam();
  EngineWorld world({.ranks = 4, .ring_bytes = 3001});
  Outcomes sends, receives;
  std::vector<std::vector<float>> values, got(3, std::vector<float>(elements));
  for (Slot slot = 0; slot < 4; ++slot)
    values.push_back(counted(elements, static_cast<float>(slot)));
  for (std::vector<float>& place : got) {
    receives.push_back(world.engine(2).receive(0, into(place), std::nullopt, 1, 1s));
  }
  for (const Slot slot : {Slot{0}, Slot{1}, Slot{3}}) {
    sends.push_back(world.engine(slot).send(0, sent(values[slot]), 2, 1, 1s, limit));
  }
  run(world, receives);
  run(world, sends);
  std::set<uint32_t> sources;
  for (size_t index = 0; index < 3; ++index) {
    sources.insert(receives[index]->source());
    EXPECT_EQ(got[index], values[receives[index]->source()]);
  }
  EXPECT_EQ(sources, (std::set<uint32_t>{0, 1, 3}));
}

// The epoch changes after any number of rounds: each message is received exactly once.
TEST_P(Messages, ArriveOnceAcrossEpochs) {
  const auto [elements, limit] = GetParam();
  for (int rounds = 0; rounds < 30; ++rounds) {
    EngineWorld world({.ranks = 3, .ring_bytes = 3001});
    std::vector<std::vector<float>> values, got(6, std::vector<float>(elements));
    Outcomes outcomes;
    for (int index = 0; index < 6; ++index) {
      values.push_back(counted(elements, static_cast<float>(index)));
      if (index < 3) outcomes.push_back(world.engine(1).receive(0, into(got[index]), 0, 1, 1s));
    }
    for (int index = 0; index < 6; ++index) {
      outcomes.push_back(world.engine(0).send(0, sent(values[index]), 1, 1, 1s, limit));
    }
    world.poll(rounds);
    world.install(world.agree({2}));
    for (int index = 3; index < 6; ++index) {
      outcomes.push_back(world.engine(1).receive(0, into(got[index]), 0, 1, 1s));
    }
    run(world, outcomes);
    for (const auto& outcome : outcomes) ASSERT_EQ(error_text(*outcome), "");
    for (int index = 0; index < 6; ++index) ASSERT_EQ(got[index], values[index]) << rounds;
    // Nothing is left over.
    std::vector<float> more(elements);
    const auto extra = world.engine(1).receive(0, into(more), 0, 1, 1s);
    world.poll(100);
    EXPECT_FALSE(extra->done());
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, Messages,
                         ::testing::Values(Case{0}, Case{1}, Case{1000}, Case{20000}, Case{0, 0},
                                           Case{1, 0}, Case{1000, 0}));

// Its send used to end once it was copied, whatever became of the receiver.
TEST(PointToPoint, AMessageAboveTheEagerLimitIsReceivedBeforeItsSendEnds) {
  const struct {
    size_t elements, limit;
    bool ends;  // before a receive comes
  } cases[] = {{0, 0, false},  {1, 0, false},         {2048, 0, false},      {4, 16, true},
               {5, 16, false}, {2048, 8 << 10, true}, {2049, 8 << 10, false}};
  for (const auto& [elements, limit, ends] : cases) {
    EngineWorld world({.ranks = 3});
    const std::vector<float> values = counted(elements, 1);
    std::vector<float> got(elements);
    const auto send = world.engine(0).send(0, sent(values), 1, 1, 1s, limit);
    world.poll(50);
    EXPECT_EQ(send->done(), ends) << elements << ", " << limit;
    run(world, {send, world.engine(1).receive(0, into(got), 0, 1, 1s)});
    EXPECT_EQ(got, values);
    const auto to_lost = world.engine(0).send(0, sent(values), 2, 1, 1s, limit);
    world.poll(50);
    world.install(world.agree({2}));
    if (ends)
      EXPECT_EQ(error_text(*to_lost), "");
    else
      EXPECT_EQ(failure_of<OperationAborted>(*to_lost)->lost, std::vector<uint32_t>{2});
  }
}

TEST(PointToPoint, RanksMayHaveOtherEagerLimits) {
  EngineWorld world({.ranks = 2});
  const std::vector<float> there = counted(1000, 1), back = counted(1000, 2);
  std::vector<float> one(1000), two(1000);
  const Outcomes sends = {world.engine(0).send(0, sent(there), 1, 1, 1s, 0),
                          world.engine(1).send(0, sent(back), 0, 1, 1s, eager_limit_max)};
  EXPECT_FALSE(sends[0]->done());
  EXPECT_TRUE(sends[1]->done());
  run(world, {sends[0], world.engine(1).receive(0, into(one), 0, 1, 1s),
              world.engine(0).receive(0, into(two), 1, 1, 1s)});
  EXPECT_EQ(one, there);
  EXPECT_EQ(two, back);
}

TEST(PointToPoint, OnlyAMessageThatIsNotEagerWaitsForAReplacement) {
  EngineWorld world({.ranks = 3, .on_failure = OnFailure::retry});
  const std::vector<float> eager = counted(4, 1), other = counted(4, 2);
  std::vector<float> got(4);
  world.stop(1);
  const auto lost = world.engine(0).send(0, sent(eager), 1, 1, 9s);
  const auto kept = world.engine(0).send(0, sent(other), 1, 1, 9s, 0);
  EXPECT_TRUE(lost->done());
  world.poll(20);
  world.install(world.agree({1}));
  world.poll(20);
  EXPECT_FALSE(kept->done());
  world.install(world.agree({}, {{1, 2}}));
  run(world, {kept, world.engine(1).receive(0, into(got), 0, 1, 9s)});
  EXPECT_EQ(error_text(*kept), "");
  EXPECT_EQ(got, other);
}

TEST(PointToPoint, AnEagerLimitThatReceiversCannotKeepIsRefused) {
  EXPECT_NO_THROW(check_eager_limit(0));
  EXPECT_NO_THROW(check_eager_limit(eager_limit_max));
  EXPECT_THROW(check_eager_limit(eager_limit_max + 1), InvalidArgument);
}

TEST(PointToPoint, ManySmallMessagesDoNotFillTheReceiver) {
  EngineWorld world({.ranks = 2, .ring_bytes = 4096});
  const std::vector<float> values = counted(2048, 0);
  Outcomes sends, receives;
  // Each one arrives before the next is sent.
  for (int index = 0; index < 400; ++index) {
    sends.push_back(world.engine(0).send(0, sent(values), 1, 1, 10s));
    world.poll(20);
  }
  const auto done =
      std::count_if(sends.begin(), sends.end(), [](const auto& one) { return one->done(); });
  EXPECT_LE(done, 2 * static_cast<long>(PointToPoint::eager_bytes_max / (2048 * 4)));
  std::vector<std::vector<float>> got(400, std::vector<float>(2048));
  for (std::vector<float>& place : got) {
    receives.push_back(world.engine(1).receive(0, into(place), 0, 1, 10s));
  }
  run(world, receives);
  run(world, sends);
  for (const std::vector<float>& place : got) ASSERT_EQ(place, values);
}

// Empty messages take memory, too.
TEST(PointToPoint, ManyEmptyMessagesDoNotFillTheReceiver) {
  EngineWorld world({.ranks = 2});
  constexpr long kMessages = 40000;
  long done = 0;
  Outcomes sends;
  for (long index = 0; index < kMessages; ++index) {
    sends.push_back(world.engine(0).send(0, {}, 1, 1, 10s));
    if (index % 64 == 0) world.poll(2);
    done += sends.back()->done() ? 1 : 0;
  }
  EXPECT_LE(done, static_cast<long>(2 * PointToPoint::eager_bytes_max / 64));
  Outcomes receives;
  for (long index = 0; index < kMessages; ++index)
    receives.push_back(world.engine(1).receive(0, {}, 0, 1, 10s));
  run(world, receives);
  run(world, sends);
}

/// Sends a frame from rank 0 to rank 2, whose messages it ends.
void send_frame(EngineWorld& world, FrameHeader header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  world.network().pipe(world.epoch(), 0, Lane::point_to_point, 0, 2)->write(bytes);
}

// The thread that polls has nobody to tell of an error: it would end the process.
TEST(PointToPoint, ARankThatBreaksTheProtocolEndsItsOwnMessagesAlone) {
  const auto header = [](FrameKind kind, uint64_t bytes) {
    FrameHeader header;
    header.kind = kind;
    header.sequence = 1;
    header.bytes = bytes;
    return header;
  };
  FrameHeader torn = header(FrameKind::offer, 0);
  torn.magic = 7;
  const std::pair<FrameHeader, const char*> frames[] = {
      {header(FrameKind::eager, uint64_t{1} << 40), "1099511627776 bytes came without an offer"},
      {header(FrameKind::content, 8), "8 bytes of message 1 came, which no receive has accepted"},
      {header(FrameKind::data, 8), "a frame of a collective arrived among messages"},
      {torn, "lost its frame boundaries"}};
  for (const auto& [frame, why] : frames) {
    EngineWorld world({.ranks = 3});
    const std::vector<float> values = counted(5000, 1);
    std::vector<float> got(5000), other(5000), later(5000);
    const auto from_it = world.engine(2).receive(0, into(got), 0, 1, 10s);
    const auto to_it = world.engine(2).send(0, sent(values), 0, 1, 10s);
    const auto from_any = world.engine(2).receive(0, into(other), std::nullopt, 1, 10s);
    send_frame(world, frame);
    world.poll(20);
    EXPECT_THAT(error_text(*from_it), ::testing::HasSubstr(why));
    EXPECT_THAT(error_text(*to_it), ::testing::HasSubstr("messages with rank 0"));
    EXPECT_THAT(error_text(*world.engine(2).receive(0, into(got), 0, 1, 10s)),
                ::testing::HasSubstr(why));
    EXPECT_FALSE(from_any->done());
    run(world, {from_any, world.engine(1).send(0, sent(values), 2, 1, 10s)});
    EXPECT_EQ(other, values);
    // The next epoch has new channels.
    world.install(world.agree({}));
    run(world, {world.engine(2).receive(0, into(later), 0, 9, 10s),
                world.engine(0).send(0, sent(values), 2, 9, 10s)});
    EXPECT_EQ(later, values);
  }
}

TEST(PointToPoint, AMessageThatIsOfferedTwiceBreaksTheProtocol) {
  EngineWorld world({.ranks = 3});
  std::vector<float> got(4);
  FrameHeader offer;
  offer.kind = FrameKind::offer;
  offer.sequence = 1;
  send_frame(world, offer);
  send_frame(world, offer);
  const auto receive = world.engine(2).receive(0, into(got), 0, 1, 10s);
  world.poll(20);
  EXPECT_THAT(error_text(*receive), ::testing::HasSubstr("message 1 was offered twice"));
}

TEST(PointToPoint, LengthsThatDifferAreNamed) {
  EngineWorld world({.ranks = 2});
  const std::vector<float> values = counted(5000, 0);
  std::vector<float> got(4);
  const auto send = world.engine(0).send(0, sent(values), 1, 1, 1s);
  const auto receive = world.engine(1).receive(0, into(got), 0, 1, 1s);
  run(world, {send, receive});
  EXPECT_EQ(
      error_text(*receive),
      "receive with tag 1 of group \"world\" on rank 0: expected float32 of 20000 bytes, which "
      "that rank sends, got float32 of 16 bytes");
  EXPECT_EQ(
      error_text(*send),
      "send with tag 1 of group \"world\" on rank 1: expected float32 of 16 bytes, which that "
      "rank receives, got float32 of 20000 bytes");
}

TEST(PointToPoint, DeadlinesAreKept) {
  EngineWorld world({.ranks = 2, .ring_bytes = 3001});
  const std::vector<float> values = counted(5000, 0);
  std::vector<float> got(5000);
  const auto receive = world.engine(1).receive(0, into(got), 0, 1, 1s);
  const auto send = world.engine(0).send(0, sent(values), 1, 2, 1s);
  world.poll(10);
  world.pass(2s);
  world.poll(1);
  EXPECT_EQ(failure_of<PeerTimeout>(*receive)->facts.rank, 0u);
  EXPECT_EQ(failure_of<PeerTimeout>(*send)->facts.rank, 1u);
  // A withdrawn message is not received by the next receive.
  const auto again = world.engine(1).receive(0, into(got), 0, 2, 1s);
  world.poll(20);
  EXPECT_FALSE(again->done());
  const auto other = world.engine(0).send(0, sent(values), 1, 2, 1s);
  run(world, {again, other});
  EXPECT_EQ(got, values);
}

// The sender was once told that the message had been received, but nobody had it.
TEST(PointToPoint, AReceiveThatEndsInTheMiddleOfAMessageLeavesItToTheNext) {
  EngineWorld world({.ranks = 2, .ring_bytes = 3001});
  const std::vector<float> first = counted(5000, 0), second = counted(5000, 7);
  std::vector<float> got(5000), next(5000);
  const auto send = world.engine(0).send(0, sent(first), 1, 1, 10s);
  const auto receive = world.engine(1).receive(0, into(got), 0, 1, 1s);
  const auto later = world.engine(0).send(0, sent(second), 1, 1, 10s);
  world.poll(5);
  ASSERT_NE(got[0] + got[1], 0.f) << "it has not begun to come";
  ASSERT_FALSE(receive->done());
  world.pass(2s);
  world.engine(1).poll(true);
  EXPECT_TRUE(failure_of<PeerTimeout>(*receive));
  world.poll(50);
  EXPECT_FALSE(send->done());
  const auto again = world.engine(1).receive(0, into(got), 0, 1, 10s);
  const auto after = world.engine(1).receive(0, into(next), 0, 1, 10s);
  run(world, {again, after, send, later});
  EXPECT_EQ(error_text(*send), "");
  EXPECT_EQ(got, first);
  EXPECT_EQ(next, second);
}

TEST(PointToPoint, ALostPeerIsNamed) {
  EngineWorld world({.ranks = 3});
  std::vector<float> got(5000), other(5000);
  const std::vector<float> values = counted(5000, 0);
  const auto from_lost = world.engine(0).receive(0, into(got), 2, 1, 1s);
  const auto to_lost = world.engine(0).send(0, sent(values), 2, 1, 1s);
  const auto from_other = world.engine(0).receive(0, into(other), 1, 1, 1s);
  world.poll(5);
  world.install(world.agree({2}));
  EXPECT_EQ(failure_of<OperationAborted>(*from_lost)->lost, std::vector<uint32_t>{2});
  EXPECT_EQ(failure_of<OperationAborted>(*to_lost)->lost, std::vector<uint32_t>{2});
  EXPECT_FALSE(from_other->done());
  const auto send = world.engine(1).send(0, sent(values), 0, 1, 1s);
  run(world, {from_other, send});
  EXPECT_EQ(other, values);
}

TEST(MessagesAcrossEpochs, TheWordForAMessageMayBeLostWithItsEpoch) {
  EngineWorld world({.ranks = 3, .ring_bytes = 1 << 20});
  const std::vector<float> values = counted(50000, 1);
  std::vector<float> got(values.size());
  const auto send = world.engine(0).send(0, sent(values), 1, 5, 10s);
  const auto receive = world.engine(1).receive(0, into(got), 0, 5, 10s);
  // The receiver has the message and acknowledges it; the sender polls no more in this epoch.
  while (!receive->done()) {
    world.engine(1).poll(true);
    if (!receive->done()) world.engine(0).poll(true);
  }
  ASSERT_FALSE(send->done());
  world.install(world.agree({2}));
  run(world, {send});
  EXPECT_EQ(error_text(*send), "");
  EXPECT_EQ(got, values);
}

}  // namespace
}  // namespace tokenyard::collectives::testing
