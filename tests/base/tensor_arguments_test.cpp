#include "base/tensor_arguments.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace tokenyard {
namespace {

std::string refusal_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const InvalidArgument& error) {
    return error.argument + ": " + error.expected + ", not " + error.seen;
  }
  return "";
}

std::string memory_refusal(const ConstTensorView& view, uint64_t alignment = 1) {
  return refusal_of([&] { require_memory("x", view, alignment); });
}

std::string view_refusal(const ConstTensorView& view) {
  return refusal_of([&] {
    require_view("x", view, {DataType::float32, DataType::int32}, {2, 3}, alignof(float));
  });
}

alignas(64) float values[8];
const auto* const odd = reinterpret_cast<const char*>(values) + 2;

TEST(TensorArguments, MemoryHoldsContiguousElementsOfAType) {
  const ConstTensorView matrix(values, {2, 3});
  EXPECT_EQ(memory_refusal(matrix), "");
  EXPECT_EQ(memory_refusal(matrix.with_strides({1, 2})),
            "x: contiguous elements, not strides [1, 2]");
  EXPECT_EQ(memory_refusal({values, static_cast<DataType>(99), {2, 3}}),
            "x: elements of a DataType, not DataType(99)");
  EXPECT_EQ(memory_refusal({values, {UINT64_MAX, 2}}),
            "x: bytes that 64 bits can count, not [18446744073709551615, 2] of float32");
  EXPECT_EQ(memory_refusal({static_cast<const float*>(nullptr), {2, 3}}),
            "x: 6 elements, not a null pointer");
}

TEST(TensorArguments, MemoryIsAligned) {
  EXPECT_EQ(memory_refusal({odd, DataType::float32, {1}}, 2), "");
  EXPECT_EQ(memory_refusal({odd, DataType::float32, {1}}, 4),
            "x: an address aligned to 4 bytes, not " +
                fmt::format("{:#x}", reinterpret_cast<uintptr_t>(odd)));
}

TEST(TensorArguments, NoElementsNeedNoMemory) {
  EXPECT_EQ(memory_refusal({}), "");
  EXPECT_EQ(memory_refusal({static_cast<const float*>(nullptr), {2, 0}}), "");
  EXPECT_EQ(memory_refusal(ConstTensorView(odd, DataType::float32, {0, 2}).with_strides({7, 7}), 4),
            "");
}

TEST(TensorArguments, AViewHasOneOfTheTypesAndTheShape) {
  EXPECT_EQ(view_refusal({values, {2, 3}}), "");
  EXPECT_EQ(view_refusal({values, DataType::int32, {2, 3}}), "");
  EXPECT_EQ(view_refusal({values, DataType::uint32, {2, 3}}),
            "x: [2, 3] of float32 or int32, not [2, 3] of uint32");
  EXPECT_EQ(view_refusal({values, {3, 2}}), "x: [2, 3] of float32 or int32, not [3, 2] of float32");
  EXPECT_EQ(view_refusal({values, {6}}), "x: [2, 3] of float32 or int32, not [6] of float32");
}

TEST(TensorArguments, AViewHasMemory) {
  EXPECT_EQ(view_refusal(ConstTensorView(values, {2, 3}).with_strides({1, 2})),
            "x: contiguous elements, not strides [1, 2]");
  EXPECT_EQ(view_refusal({static_cast<const float*>(nullptr), {2, 3}}),
            "x: 6 elements, not a null pointer");
  EXPECT_EQ(view_refusal({odd, DataType::float32, {2, 3}}),
            "x: an address aligned to 4 bytes, not " +
                fmt::format("{:#x}", reinterpret_cast<uintptr_t>(odd)));
}

TEST(TensorArguments, AViewMayBeLeftOutWhereItHasNoElements) {
  EXPECT_EQ(view_refusal({}), "x: 6 elements, not a null pointer");
  EXPECT_EQ(refusal_of([] { require_view("x", {}, {DataType::float32}, {0, 3}, 4); }), "");
}

TEST(TensorArguments, AKernelGetsNoMoreMemoryThanThereIs) {
  const ConstTensorView view{values, {2, 3}};
  EXPECT_EQ(memory_for("x", view, 24), values);
  EXPECT_EQ(memory_for("x", ConstTensorView(), 0), nullptr);
  EXPECT_EQ(refusal_of([&] { memory_for("x", view, 25); }), "x: at least 25 bytes, not 24");
  EXPECT_EQ(refusal_of([] { memory_for("x", ConstTensorView(), 1); }),
            "x: at least 1 bytes, not 0");
}

TEST(TensorArguments, WrittenMemoryDoesNotOverlap) {
  const auto overlap = [](size_t written, size_t bytes, size_t read) {
    return refusal_of(
        [&] { require_no_overlap("out", values + written, bytes, "y", values + read, 8); });
  };
  EXPECT_EQ(overlap(0, 8, 2), "");
  EXPECT_EQ(overlap(4, 8, 2), "");
  EXPECT_EQ(overlap(2, 0, 2), "");
  const auto address = [](size_t index) {
    return fmt::format("{:#x}", reinterpret_cast<uintptr_t>(values + index));
  };
  EXPECT_EQ(overlap(0, 12, 2), "out: memory that does not overlap y, not 12 bytes at " +
                                   address(0) + ", which overlap its 8 bytes at " + address(2));
  EXPECT_NE(overlap(3, 4, 2), "");
}

}  // namespace
}  // namespace tokenyard
