// Round trips through an archive, and rejected bytes. The rejected ones are intact bytes of a wrong
// writer, since the header detects damage.
#include "base/archive.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "base/spoiled_archives.hpp"

namespace tokenyard {

struct Fruit {
  std::string name;
  bool ripe = false;
  std::optional<uint32_t> stones;
  std::vector<uint16_t> grams;
  bool operator==(const Fruit&) const = default;
};

void visit(auto& archive, MaybeConst<Fruit> auto& fruit) {
  archive(fruit.name, fruit.ripe, fruit.stones, fruit.grams);
}

namespace {

constexpr ArchiveKind kBasket{.name = "a basket", .mark = 0x74656b736162};
constexpr uint32_t kSender = 5;

std::vector<std::byte> written(const auto&... values) {
  ArchiveWriter writer(kBasket);
  writer(values...);
  return writer.sealed();
}

/// Returns the error for bytes that were written as a different type.
template <class... Values>
std::string refused_as(const std::vector<std::byte>& bytes) {
  return refusal_of([&] {
    ArchiveReader reader(kBasket, bytes, kSender);
    std::tuple<Values...> values;
    std::apply(reader, values);
    reader.end();
  });
}

const std::vector<Fruit> kFruits = {{"cherry", true, 1, {7, 6}}, {"", false, {}, {}}};

TEST(Archive, ValuesAreTheSameAfterwards) {
  const auto bytes = written(uint8_t{3}, kFruits, kFruits[1]);
  ArchiveReader reader(kBasket, bytes, kSender);
  uint8_t number = 0;
  const Fruit before{"something else", true, 2, {1}};
  std::vector<Fruit> fruits = {before};
  Fruit fruit = before;
  reader(number, fruits, fruit);
  reader.end();
  EXPECT_EQ(number, 3);
  EXPECT_EQ(fruits, kFruits);
  EXPECT_EQ(fruit, kFruits[1]);
}

TEST(Archive, LiesInTheseBytes) {
  // A header of 24 bytes; a length, the text; a flag; whether there is a number; a length, a list.
  const auto bytes = written(Fruit{"fig", true, {}, {0x0102}});
  const std::vector<uint8_t> body{3, 0, 0, 0, 0, 0, 0, 0, 'f', 'i', 'g', 1,
                                  0, 1, 0, 0, 0, 0, 0, 0, 0,   2,   1};
  ASSERT_EQ(bytes.size(), sizeof(ArchiveHeader) + body.size());
  for (size_t i = 0; i < body.size(); ++i)
    EXPECT_EQ(bytes[sizeof(ArchiveHeader) + i], std::byte{body[i]}) << i;
}

TEST(Archive, WhatIsSpoiledIsRefused) {
  expect_spoiled_refused(written(kFruits), [](std::span<const std::byte> bytes) {
    ArchiveReader reader(kBasket, bytes, kSender);
    std::vector<Fruit> fruits;
    reader(fruits);
    reader.end();
  });
}

TEST(Archive, RefusalsSayWhatWasExpectedAndSeen) {
  const std::string garbled = "a basket from rank 5 is corrupted: ";
  EXPECT_EQ(refused_as<>({}), garbled + "bytes to come: expected 24, got 0");
  EXPECT_EQ(refused_as<bool>(written(uint8_t{2})), garbled + "a flag, at most: expected 1, got 2");
  EXPECT_EQ(refused_as<std::optional<uint8_t>>(written(uint8_t{9})),
            garbled + "a flag, at most: expected 1, got 9");
  EXPECT_EQ(refused_as<uint64_t>(written(uint32_t{1})),
            garbled + "bytes to come: expected 8, got 4");
  EXPECT_EQ(refused_as<uint32_t>(written(uint64_t{1})),
            garbled + "bytes after its end: expected 0, got 4");
  EXPECT_EQ(refused_as<std::string>(written(uint64_t{3}, uint16_t{0})),
            garbled + "a length, at most: expected 2, got 3");
}

/// Otherwise a few bytes could make a rank allocate all memory.
TEST(Archive, ALengthMakesNoMoreRoomThanBytesHaveCome) {
  const auto bytes = written(uint64_t{1} << 60, uint32_t{0});
  const std::string said = "a basket from rank 5 is corrupted: a length, at most: expected ";
  EXPECT_EQ(refused_as<std::vector<Fruit>>(bytes), said + "4, got 1152921504606846976");
  EXPECT_EQ(refused_as<std::vector<uint16_t>>(bytes), said + "2, got 1152921504606846976");
}

}  // namespace
}  // namespace tokenyard
