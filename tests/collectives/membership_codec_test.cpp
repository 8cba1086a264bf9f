#include <gtest/gtest.h>

#include <random>

#include "collectives/membership/message_codec.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {
namespace {

using Bytes = std::vector<std::byte>;

Verdict verdict() {
  return {.next = {.epoch = 7, .slots = 4, .members = {{0, 10}, {1, 11}, {3, 13}}},
          .groups = {{.group = 0, .slots = {0, 1, 2, 3}, .committed = 41},
                     {.group = 9, .slots = {1, 3}, .committed = 1, .begun = 2}},
          .lost = {2},
          .left = {2},
          .stalled = {3},
          .mends = true};
}

std::vector<Message> one_of_each() {
  const Ballot ballot{3, 1};
  return {
      {7, Heartbeat{.waiting = {{2, 99}},
                    .suspected = {0, 3},
                    .wants_change = true,
                    .mends = true,
                    .drains = true}},
      {7, Knock{}},
      {7, NotYet{verdict().next}},
      {7, Prepare{ballot}},
      {7, Promise{.ballot = ballot, .progress = verdict().groups, .suspected = {1}}},
      {7, Promise{.ballot = ballot,
                  .accepted_in = Ballot{2, 3},
                  .accepted = verdict(),
                  .progress = {},
                  .suspected = {},
                  .accusations = {{.slot = 0, .group = 9, .sequence = 2},
                                  {.slot = 2, .group = 0, .sequence = 42}},
                  .admits = {2, 5},
                  .waiting = {{2, 1}, {2, 2}},
                  .mends = true}},
      {7, Accept{ballot, verdict()}},
      {7, Accepted{ballot}},
      {7, Refused{ballot, {4, 0}}},
      {7, Decide{verdict()}},
      {7, Goodbye{verdict().groups}},
      {~Epoch{0}, FencedOff{8}},
  };
}

TEST(MembershipCodec, EveryMessageComesBackTheSame) {
  for (const Message& message : one_of_each()) {
    const Bytes bytes = encode(message);
    const std::optional<Message> back = decode_message(bytes);
    ASSERT_TRUE(back) << message.body.index();
    EXPECT_EQ(back->epoch, message.epoch);
    EXPECT_EQ(back->body.index(), message.body.index());
    EXPECT_EQ(encode(*back), bytes) << message.body.index();
  }
  EXPECT_EQ(decode_verdict(encode(verdict())), verdict());
  const WitnessRegister memory{7, {{3, 1}, Ballot{2, 0}, verdict()}};
  EXPECT_EQ(decode_witness(encode(memory)), memory);
}

TEST(MembershipCodec, AnythingCutShortOrTooLongIsRefused) {
  for (const Message& message : one_of_each()) {
    Bytes bytes = encode(message);
    for (size_t kept = 0; kept < bytes.size(); ++kept)
      EXPECT_FALSE(decode_message(std::span(bytes).first(kept)))
          << message.body.index() << " after " << kept;
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_message(bytes)) << message.body.index();
  }
}

TEST(MembershipCodec, WhatIsAcceptedIsWhatAnEncoderWrites) {
  std::mt19937 random(1);
  uint32_t accepted = 0;
  for (uint32_t round = 0; round < 20000; ++round) {
    const std::vector<Message> messages = one_of_each();
    Bytes bytes = encode(messages[round % messages.size()]);
    for (uint32_t change = random() % 4; change != ~0u; --change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (const std::optional<Message> message = decode_message(bytes)) {
      ++accepted;
      EXPECT_EQ(encode(*message), bytes);
    }
  }
  EXPECT_GT(accepted, 100u);
}

TEST(MembershipCodec, RandomBytesAreReadToTheirEndAndNoFurther) {
  std::mt19937 random(2);
  for (uint32_t round = 0; round < 20000; ++round) {
    // On the heap and exactly as long, so that an address sanitizer sees every step too far.
    Bytes bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
    if (const std::optional<Message> message = decode_message(bytes)) {
      EXPECT_EQ(encode(*message), bytes);
    }
  }
}

TEST(MembershipCodec, AFalseCountReservesNothing) {
  Bytes bytes = encode(Message{7, Heartbeat{}});
  for (size_t i = 9; i < 13; ++i) bytes[i] = std::byte{0xff};
  EXPECT_FALSE(decode_message(bytes));
}

TEST(MembershipCodec, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    Verdict changed = verdict();
    change(changed);
    return !decode_verdict(encode(changed));
  };
  EXPECT_FALSE(refused([](Verdict&) {}));
  EXPECT_TRUE(refused([](Verdict& v) { std::swap(v.next.members[0], v.next.members[1]); }));
  EXPECT_TRUE(refused([](Verdict& v) { v.next.members[1] = v.next.members[0]; }));
  EXPECT_TRUE(refused([](Verdict& v) { v.next.slots = 3; }));
  EXPECT_TRUE(refused([](Verdict& v) { v.next.slots = kSlotsMax + 1; }));
  EXPECT_TRUE(refused([](Verdict& v) { v.groups[1].group = 0; }));
  EXPECT_TRUE(refused([](Verdict& v) { v.lost = {2, 2}; }));
}

TEST(MembershipCodec, TooMuchToSayIsTold) {
  std::vector<Slot> all(kSlotsMax);
  for (Slot slot = 0; slot < kSlotsMax; ++slot) all[slot] = slot;
  Goodbye goodbye;
  for (GroupId group = 0; group < 300; ++group) goodbye.progress.push_back({group, all, 1, 1});
  EXPECT_THROW(encode(Message{1, goodbye}), InvalidArgument);
}

}  // namespace
}  // namespace tokenyard::collectives
