// Questions to the witness that meet in one store, whose answers are late, old or lost.
#include "membership/witness_question.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "membership/message_codec.hpp"

namespace tokenyard::membership {
namespace {

using Bytes = WitnessQuestion::Bytes;

constexpr Ballot kLow{1, 0}, kHigh{1, 2};

Verdict verdict(Slot survivor) {
  return {.next = {.epoch = 4, .slots = 4, .members = {{survivor, 9}}}};
}
Message prepare(Ballot ballot, Epoch epoch = 3) {
  return {epoch, Prepare{ballot}};
}
Message accept(Ballot ballot) {
  return {3, Accept{ballot, verdict(ballot.leader)}};
}

/// A register that can be compared and set.
struct Register {
  std::optional<Bytes> held;

  Bytes compare_and_set(const std::optional<Bytes>& expected, const Bytes& desired) {
    if (held == expected) held = desired;
    return held.value_or(Bytes{});
  }
  Message ask(const Message& question) {
    WitnessQuestion asked(question);
    auto found = held;
    while (const auto desired = asked.next(std::move(found)))
      found = compare_and_set(asked.expected(), *desired);
    return asked.reply().value();
  }
};

TEST(WitnessQuestion, OfTwoThatAskAtOnceTheLoserLearnsOfTheWinner) {
  Register store;
  WitnessQuestion low(prepare(kLow)), high(prepare(kHigh));
  const auto from_low = low.next(store.held), from_high = high.next(store.held);
  ASSERT_TRUE(from_low && from_high);
  EXPECT_FALSE(high.next(store.compare_and_set(high.expected(), *from_high)));
  EXPECT_TRUE(std::holds_alternative<Promise>(high.reply()->body));
  // It must not count as promised, though it wrote what it would have.
  EXPECT_FALSE(low.next(store.compare_and_set(low.expected(), *from_low)));
  const auto* refused = std::get_if<Refused>(&low.reply()->body);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->promised, kHigh);
}

TEST(WitnessQuestion, WhoOvertakesAVoteIsToldOfIt) {
  Register store;
  store.ask(prepare(kLow));
  WitnessQuestion high(prepare(kHigh));
  const auto from_high = high.next(store.held);
  EXPECT_TRUE(std::holds_alternative<Accepted>(store.ask(accept(kLow)).body));
  const auto again = high.next(store.compare_and_set(high.expected(), *from_high));
  ASSERT_TRUE(again) << "the register was another one";
  EXPECT_FALSE(high.reply());
  EXPECT_FALSE(high.next(store.compare_and_set(high.expected(), *again)));
  const auto* promise = std::get_if<Promise>(&high.reply()->body);
  ASSERT_NE(promise, nullptr);
  EXPECT_EQ(promise->accepted_in, kLow);
  EXPECT_EQ(promise->accepted, verdict(kLow.leader));
}

TEST(WitnessQuestion, AVoteWhoseAnswerWasLostCountsWhenAskedAgain) {
  Register store;
  store.ask(prepare(kLow));
  WitnessQuestion lost(accept(kLow));
  store.compare_and_set(store.held, *lost.next(store.held));
  EXPECT_FALSE(lost.reply()) << "nobody knows yet";
  const auto before = store.held;
  EXPECT_TRUE(std::holds_alternative<Accepted>(store.ask(accept(kLow)).body));
  EXPECT_EQ(store.held, before);
}

TEST(WitnessQuestion, AnOldReadDoesNotUndoANewerPromise) {
  Register store;
  store.ask(prepare(kLow));
  const auto old = store.held;
  store.ask(prepare(kHigh));
  WitnessQuestion vote(accept(kLow));
  const auto desired = vote.next(old);
  ASSERT_TRUE(desired);
  EXPECT_FALSE(vote.next(store.compare_and_set(vote.expected(), *desired)));
  EXPECT_TRUE(std::holds_alternative<Refused>(vote.reply()->body));
}

TEST(WitnessQuestion, AnEpochThatIsOverIsFencedOff) {
  Register store;
  store.ask(prepare(kLow, 5));
  EXPECT_TRUE(std::holds_alternative<FencedOff>(store.ask(prepare(kHigh, 4)).body));
  EXPECT_TRUE(std::holds_alternative<Promise>(store.ask(prepare(kLow, 6)).body));
}

// compare_and_set returns no bytes where the key does not exist: a read that lags may have seen it
// before it was there, or it never was.
TEST(WitnessQuestion, NoBytesAreARegisterThatWasNeverWritten) {
  WitnessQuestion asked(prepare(kLow));
  EXPECT_TRUE(asked.next(Bytes{}));
  EXPECT_EQ(asked.expected(), std::nullopt);
}

TEST(WitnessQuestion, SomethingElseInTheStoreIsNotOverwritten) {
  WitnessQuestion asked(prepare(kLow));
  EXPECT_FALSE(asked.next(Bytes(7, std::byte{1})));
  EXPECT_FALSE(asked.reply());
}

}  // namespace
}  // namespace tokenyard::membership
