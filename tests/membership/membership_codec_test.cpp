#include <gtest/gtest.h>

#include <random>

#include "membership/message_codec.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::membership {
namespace {

using Bytes = std::vector<std::byte>;

Verdict verdict() {
  return {.next = {.epoch = 7, .slots = 4, .members = {{0, 10}, {1, 11}, {3, 13}}},
          .groups = {{.group = 0, .slots = {0, 1, 2, 3}, .committed = 41},
                     {.group = 9, .slots = {1, 3}, .committed = 1, .begun = 2}},
          .lost = {2},
          .left = {2},
          .stalled = {3},
          .excused = {1},
          .recovers = true};
}

std::vector<Message> one_of_each() {
  const Ballot ballot{3, 1};
  return {
      {7, Heartbeat{.waiting = {{2, 99}},
                    .suspected = {0, 3},
                    .wants_change = true,
                    .recovers = true,
                    .drains = true}},
      {7, JoinRequest{}},
      {7, NotYet{verdict().next}},
      {7, Prepare{ballot}},
      {7, Promise{.ballot = ballot, .progress = verdict().groups, .suspected = {1}}},
      {7, Promise{.ballot = ballot,
                  .accepted_in = Ballot{2, 3},
                  .accepted = verdict(),
                  .progress = {},
                  .suspected = {},
                  .timeout_reports = {{.slot = 2, .group = 0, .sequence = 42},
                                      {.slot = 0, .group = 9, .sequence = 2},
                                      {.slot = 3, .group = 9, .sequence = 2},
                                      {.slot = 3, .group = 9, .sequence = 3}},
                  .admits = {2, 5},
                  .evicts = {{0, 1}, {3, 9}},
                  .waiting = {{2, 1}, {2, 2}},
                  .recovers = true}},
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
  const auto timeout_reports = [](const Message& message) {
    return std::get<Promise>(message.body).timeout_reports;
  };
  const Message promise = one_of_each()[5];
  EXPECT_EQ(timeout_reports(promise).size(), 4u);
  EXPECT_EQ(timeout_reports(*decode_message(encode(promise))), timeout_reports(promise));
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
    // On the heap with its exact length, so that an address sanitizer sees every read past the end.
    Bytes bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
    if (const std::optional<Message> message = decode_message(bytes)) {
      EXPECT_EQ(encode(*message), bytes);
    }
  }
}

TEST(MembershipCodec, EveryPairOfAListAscends) {
  for (const std::vector<Slot>& lost : {std::vector<Slot>{1, 1, 2}, {1, 2, 2}, {1, 3, 2}, {2, 1}}) {
    Verdict changed = verdict();
    changed.lost = lost;
    EXPECT_FALSE(decode_verdict(encode(changed)));
  }
  Verdict right = verdict();
  right.lost = {1, 2, 3};
  EXPECT_EQ(decode_verdict(encode(right)), right);
}

TEST(MembershipCodec, TheLongestMessageIsOf4MiB) {
  // 13 bytes of message, 37 of each group and 4 of each slot.
  constexpr size_t kMost = 4u << 20, kGroups = 259, kSlots = (kMost - 13 - 37 * kGroups) / 4;
  static_assert(13 + 37 * kGroups + 4 * kSlots == kMost);
  Goodbye farewell{std::vector<GroupProgress>(kGroups)};
  for (size_t group = 0, left = kSlots; group < kGroups; ++group) {
    farewell.progress[group].group = group;
    const size_t own = left / (kGroups - group);
    for (size_t slot = 0; slot < own; ++slot)
      farewell.progress[group].slots.push_back(static_cast<Slot>(slot));
    left -= own;
  }
  Bytes bytes = encode(Message{7, farewell});
  EXPECT_EQ(bytes.size(), kMost);
  EXPECT_TRUE(decode_message(bytes));
  farewell.progress[0].slots.push_back(static_cast<Slot>(farewell.progress[0].slots.size()));
  EXPECT_THROW((void)encode(Message{7, farewell}), InvalidArgument);
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

TEST(MembershipCodec, RefusesAccusationsThatCannotBe) {
  const auto refused = [](const std::vector<TimeoutReport>& timeout_reports) {
    return !decode_message(encode(Message{7, Promise{.timeout_reports = timeout_reports}}));
  };
  EXPECT_FALSE(refused({{1, 7, 5}, {2, 7, 5}, {0, 7, 6}, {0, 8, 1}}));
  EXPECT_TRUE(refused({{2, 7, 5}, {1, 7, 5}}));
  EXPECT_TRUE(refused({{1, 7, 5}, {1, 7, 5}}));
  EXPECT_TRUE(refused({{1, 7, 6}, {1, 7, 5}}));
  EXPECT_TRUE(refused({{1, 8, 5}, {1, 7, 5}}));
  EXPECT_TRUE(refused({{1, 7, 5}, {1, 7, 6}, {2, 7, 5}}));  // a duplicate operation
  EXPECT_TRUE(refused({{kSlotsMax, 7, 5}}));
}

// Encodings that no encoder can produce.
TEST(MembershipCodec, RefusesAnOverdueOperationOfNobodyAndFalseCounts) {
  const Bytes bytes = encode(Message{7, Promise{.timeout_reports = {{1, 7, 5}}}});
  ASSERT_TRUE(decode_message(bytes));
  // Kind, epoch, ballot, nothing accepted, no progress, nobody suspected.
  const long operations = 1 + 8 + 12 + 1 + 4 + 4, slots = operations + 4 + 8 + 8;
  ASSERT_EQ(bytes[operations], std::byte{1});
  ASSERT_EQ(bytes[slots], std::byte{1});
  Bytes nobody = bytes;
  nobody[slots] = std::byte{0};
  nobody.erase(nobody.begin() + slots + 4, nobody.begin() + slots + 8);
  EXPECT_FALSE(decode_message(nobody));
  for (const long count : {operations, slots}) {
    Bytes changed = bytes;
    for (long i = count; i < count + 4; ++i) changed[i] = std::byte{0xff};
    EXPECT_FALSE(decode_message(changed)) << count;
  }
}

std::vector<Slot> every_slot() {
  std::vector<Slot> all(kSlotsMax);
  for (Slot slot = 0; slot < kSlotsMax; ++slot) all[slot] = slot;
  return all;
}

// At 20 bytes per report, messages grew too long from some fifty groups on, and a rank with too
// many reports could send none at all.
TEST(MembershipCodec, WhoNamesAllTheOthersInEachGroupIsHeard) {
  const std::vector<Slot> all = every_slot();
  Promise promise{.accepted_in = Ballot{2, 3}, .suspected = all, .admits = all};
  for (const Slot slot : all) promise.waiting.push_back({slot, slot + 1});
  for (GroupId group = 0; group < 80; ++group) {
    promise.progress.push_back({group, all, 1, 2});
    for (const Slot slot : all) promise.timeout_reports.push_back({slot, group, 2});
  }
  promise.accepted = {.next = {.epoch = 8, .slots = kSlotsMax, .members = promise.waiting},
                      .groups = promise.progress,
                      .lost = all,
                      .left = all,
                      .stalled = all,
                      .excused = all};
  const std::optional<Message> back = decode_message(encode(Message{7, promise}));
  ASSERT_TRUE(back);
  EXPECT_EQ(std::get<Promise>(back->body).timeout_reports, promise.timeout_reports);
}

TEST(MembershipCodec, TooMuchToSayIsTold) {
  const std::vector<Slot> all = every_slot();
  Goodbye goodbye;
  for (GroupId group = 0; group < 300; ++group) goodbye.progress.push_back({group, all, 1, 1});
  EXPECT_THROW(encode(Message{1, goodbye}), InvalidArgument);
}

}  // namespace
}  // namespace tokenyard::membership
