// Statements of task types about their arguments, compared with the memory that arguments name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/refused.hpp"
#include "megakernel/tasks/builtin.hpp"
#include "megakernel/tasks/exchange.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

TEST(Touches, ProductsThatNoNumberHoldsAreTheLargest) {
  EXPECT_EQ((Extent(UINT32_MAX) * UINT32_MAX).count(), uint64_t{UINT32_MAX} * UINT32_MAX);
  EXPECT_EQ((Extent(UINT32_MAX) * UINT32_MAX * UINT32_MAX).count(), UINT64_MAX);
  EXPECT_EQ((Extent(UINT64_MAX) + 1).count(), UINT64_MAX);
  const TouchedRange rows{.argument = "x",
                          .access = AccessKind::read,
                          .address = 64,
                          .row_bytes = 8,
                          .rows = uint64_t{1} << 40,
                          .stride = uint64_t{1} << 40,
                          .among = false,
                          .alignment = 4,
                          .element = ""};
  EXPECT_EQ(rows.bytes(), UINT64_MAX);
}

TEST(Touches, ElementsOfNullAreNull) {
  float* const none = nullptr;
  EXPECT_EQ(element_at(none, 7), nullptr);
  std::array<float, 2> two{};
  EXPECT_EQ(element_at(two.data(), 1), &two[1]);
}

/// Returns the argument rejected for a sum of two rows of two elements, three apart: 20 bytes.
std::string refusing(const ArgPiece& parts) {
  alignas(16) static std::array<float, 8> numbers{};
  Touches touches("reduce", "sum");
  touches.reads_rows("parts", numbers.data(), 2, 2, 3);
  ArgPiece piece = parts;
  piece.address += reinterpret_cast<uint64_t>(numbers.data());
  return test::refused([&] { touches.check({piece}); });
}

TEST(Touches, APieceHoldsAllThatIsTouched) {
  const std::string parts = "parts of a reduce task 'sum'";
  EXPECT_EQ(refusing({.argument = "parts", .address = 0, .bytes = 20, .dtype = ""}), "nothing");
  EXPECT_EQ(refusing({.argument = "parts", .address = 0, .bytes = 19, .dtype = ""}), parts);
  EXPECT_EQ(refusing({.argument = "parts", .address = 4, .bytes = 64, .dtype = ""}), parts);
  EXPECT_EQ(refusing({.argument = "other", .address = 0, .bytes = 64, .dtype = ""}), parts);
  EXPECT_EQ(refusing({.argument = "parts", .address = 0, .bytes = 20, .dtype = "float32"}),
            "nothing");
  EXPECT_EQ(refusing({.argument = "parts", .address = 0, .bytes = 20, .dtype = "int32"}), parts);
}

TEST(Touches, WhatIsTouchedLiesSomewhere) {
  Graph graph(builtin_tasks(), {});
  EXPECT_EQ(test::refused([&] {
              graph.add<Reduce>({.parts = nullptr,
                                 .residual = nullptr,
                                 .y = nullptr,
                                 .part_count = 1,
                                 .stride = 1,
                                 .count = 1},
                                {.name = "sum"});
            }),
            "parts of a reduce task 'sum'");
  EXPECT_TRUE(graph.tasks().empty());
}

TEST(Touches, EveryTaskOfTheDecoderListStatesWhatItTouches) {
  for (const TaskType& type : builtin_tasks().types) EXPECT_NE(type.touches, nullptr) << type.name;
}

}  // namespace
}  // namespace tokenyard::megakernel
