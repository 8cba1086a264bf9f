#include "fabric/arena.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "fabric/manual_accelerator.hpp"
#include "fabric/sub_allocator.hpp"

namespace tokenyard {
namespace {

/// Timeout of an arena that waits for streams. No test waits for it to pass: see `while_waiting`.
constexpr std::chrono::seconds kTimeout{60};

class ArenaTest : public testing::Test {
 protected:
  static constexpr size_t kUnit = SubAllocator::kAlignment;

  ArenaTest() {
    auto memory = std::make_shared<std::vector<std::byte>>(16 * kUnit);
    memory_ = memory;
    Region region{
        .memory = memory, .base = memory->data(), .bytes = 8 * kUnit, .bases = {}, .rank = 1};
    region.bases = {nullptr, memory->data(), memory->data() + 8 * kUnit};
    arena_ = std::make_unique<Arena>(gpu_, std::move(region), kTimeout);
    gpu_->while_waiting = [this] { gpu_->skip(kTimeout); };
  }

  std::shared_ptr<ManualAccelerator> gpu_ = std::make_shared<ManualAccelerator>();
  std::weak_ptr<std::vector<std::byte>> memory_;
  std::unique_ptr<Arena> arena_;
  Stream left_ = gpu_->make_stream();
  Stream right_ = gpu_->make_stream();
};

TEST_F(ArenaTest, TellsPeersWhereThingsAre) {
  const ArenaBlock first = arena_->allocate(10, left_);
  const ArenaBlock second = arena_->allocate(10, left_);
  EXPECT_EQ(first.data(), arena_->base());
  EXPECT_EQ(second.data(), arena_->base() + second.offset());
  EXPECT_EQ(second.offset(), kUnit);
  EXPECT_EQ(arena_->bases().mine(), arena_->base());
  EXPECT_EQ(arena_->bases().of(2).address(), arena_->base_of(2));
  EXPECT_EQ(arena_->base_of(0), nullptr);
}

TEST_F(ArenaTest, ReusesAtOnceOnTheSameStreamOnly) {
  gpu_->keep_busy(left_);
  ArenaBlock block = arena_->allocate(8 * kUnit, left_);
  block = ArenaBlock();
  EXPECT_EQ(arena_->used(), 8 * kUnit) << "the stream has not reached the free yet";
  EXPECT_THROW(arena_->allocate(kUnit, right_), InvalidArgument);
  const ArenaBlock half = arena_->allocate(4 * kUnit, left_);
  const ArenaBlock rest = arena_->allocate(4 * kUnit, left_);
  EXPECT_EQ(half.offset(), 0u);
  EXPECT_EQ(rest.offset(), 4 * kUnit);
}

TEST_F(ArenaTest, CallsThatRepeatAskForNoEvent) {
  const size_t before = gpu_->asked();
  std::set<uint64_t> places;
  for (uint32_t call = 0; call < 20; ++call) {
    const ArenaBlock small = arena_->allocate(kUnit, left_);
    const ArenaBlock large = arena_->allocate(3 * kUnit - 5, left_);
    places.insert({small.offset(), large.offset()});
  }
  EXPECT_EQ(places, (std::set<uint64_t>{0, kUnit}));
  EXPECT_EQ(gpu_->asked(), before);
}

TEST_F(ArenaTest, AsksForOneEventOfAStreamThatIsBehind) {
  gpu_->keep_busy(left_);
  for (uint32_t piece = 1; piece <= 3; ++piece) arena_->allocate(piece * kUnit, left_);
  const size_t before = gpu_->asked();
  const ArenaBlock block = arena_->allocate(kUnit, right_);
  EXPECT_EQ(gpu_->asked(), before + 1);
}

TEST_F(ArenaTest, WaitsForStreamsThatWereRecorded) {
  gpu_->keep_busy(right_);
  ArenaBlock block = arena_->allocate(8 * kUnit, left_);
  block.record_stream(right_);
  block.record_stream(left_);
  block = ArenaBlock();
  EXPECT_THROW(arena_->allocate(kUnit, left_), InvalidArgument);
  gpu_->finish();
  EXPECT_EQ(arena_->used(), 0u);
  EXPECT_NO_THROW(arena_->allocate(8 * kUnit, left_));
}

TEST_F(ArenaTest, WaitsForAFreedPieceBeforeItRefuses) {
  gpu_->keep_busy(left_);
  ArenaBlock block = arena_->allocate(8 * kUnit, left_);
  block = ArenaBlock();
  gpu_->while_waiting = [&] { gpu_->finish(); };
  EXPECT_EQ(arena_->allocate(8 * kUnit, right_).offset(), 0u);
}

TEST_F(ArenaTest, TrimFreesTheTailInStreamOrder) {
  gpu_->keep_busy(left_);
  ArenaBlock block = arena_->allocate(8 * kUnit, left_);
  block.trim(kUnit + 1);
  EXPECT_EQ(block.bytes(), kUnit + 1);
  EXPECT_THROW(arena_->allocate(kUnit, right_), InvalidArgument);
  EXPECT_EQ(arena_->allocate(6 * kUnit, left_).offset(), 2 * kUnit);
}

TEST_F(ArenaTest, TwoPiecesOfOneGoApart) {
  gpu_->keep_busy(left_);
  ArenaBlock first = arena_->allocate(8 * kUnit, left_);
  {
    const ArenaBlock rest = first.split(2 * kUnit - 1);
    EXPECT_EQ(first.bytes(), 2 * kUnit);
    EXPECT_EQ(rest.offset(), 2 * kUnit);
    EXPECT_EQ(rest.bytes(), 6 * kUnit);
    EXPECT_FALSE(first.split(2 * kUnit));
    EXPECT_FALSE(first.split(2 * kUnit - 1));
  }
  EXPECT_THROW(arena_->allocate(kUnit, right_), InvalidArgument);  // The left stream used it too.
  EXPECT_EQ(arena_->allocate(6 * kUnit, left_).offset(), 2 * kUnit);
  EXPECT_EQ(first.offset(), 0u);
}

TEST_F(ArenaTest, WhatNobodyHasUsedComesBackAtOnce) {
  gpu_->keep_busy(left_);
  ArenaBlock first = arena_->allocate(4 * kUnit, left_);
  ArenaBlock last = arena_->allocate(4 * kUnit, left_);
  first.keep_first(kUnit - 1);
  last.keep_last(kUnit - 1);
  EXPECT_EQ(first.data(), arena_->base());
  EXPECT_EQ(last.offset(), 7 * kUnit);
  EXPECT_EQ(last.data(), arena_->base() + 7 * kUnit);
  EXPECT_EQ(last.bytes(), kUnit - 1);
  EXPECT_EQ(arena_->used(), 2 * kUnit);
  EXPECT_EQ(arena_->allocate(6 * kUnit, right_).offset(), kUnit);
}

TEST_F(ArenaTest, WhatWasUsedBeforeComesBackInStreamOrder) {
  gpu_->keep_busy(left_);
  { const ArenaBlock before = arena_->allocate(8 * kUnit, left_); }
  ArenaBlock first = arena_->allocate(4 * kUnit, left_);
  ArenaBlock last = arena_->allocate(4 * kUnit, left_);
  first.keep_first(kUnit);
  last.keep_last(kUnit);
  EXPECT_EQ(last.offset(), 7 * kUnit);
  EXPECT_THROW(arena_->allocate(kUnit, right_), InvalidArgument);
  EXPECT_EQ(arena_->allocate(3 * kUnit, left_).offset() % (3 * kUnit), kUnit);
}

TEST_F(ArenaTest, WhatStaysLiesAtTheUpperEnd) {
  std::vector<ArenaBlock> stay;
  for (uint64_t piece = 1; piece <= 3; ++piece) {
    ArenaBlock block = arena_->allocate(2 * kUnit, left_, ArenaEnd::upper);
    const ArenaBlock rows = arena_->allocate(2 * kUnit, left_);
    EXPECT_EQ(rows.offset(), 0u);
    block.keep_last(kUnit);
    EXPECT_EQ(block.offset(), (8 - piece) * kUnit);
    stay.push_back(std::move(block));
  }
  EXPECT_EQ(arena_->allocate(5 * kUnit, right_).offset(), 0u);
}

TEST_F(ArenaTest, TheUpperEndOfARestingPieceIsTakenToo) {
  gpu_->keep_busy(left_);
  { const ArenaBlock before = arena_->allocate(8 * kUnit, left_); }
  const ArenaBlock stays = arena_->allocate(kUnit, left_, ArenaEnd::upper);
  EXPECT_EQ(stays.offset(), 7 * kUnit);
  EXPECT_EQ(arena_->allocate(7 * kUnit, left_).offset(), 0u);
}

TEST_F(ArenaTest, SaysWhatWasAskedForAndWhatIsFree) {
  const ArenaBlock block = arena_->allocate(5 * kUnit, left_);
  try {
    arena_->allocate(4 * kUnit, left_);
    FAIL() << "the block does not fit, so allocate must throw";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "arena_bytes");
    EXPECT_EQ(error.expected, "room for 1024 more bytes");
    EXPECT_EQ(error.seen, "2048 bytes, 1280 of them in use, at most 768 free in one piece");
  }
}

TEST_F(ArenaTest, QuarantinedPiecesStayTaken) {
  ArenaBlock block = arena_->allocate(8 * kUnit, left_);
  block.quarantine();
  EXPECT_FALSE(block);
  EXPECT_EQ(arena_->used(), 8 * kUnit);
  EXPECT_THROW(arena_->allocate(1, left_), InvalidArgument);
}

TEST_F(ArenaTest, APieceKeepsTheMemoryAfterTheArenaHasGone) {
  ArenaBlock block = arena_->allocate(kUnit, left_);
  ArenaBlock moved = std::move(block);
  EXPECT_FALSE(block);
  arena_.reset();
  ASSERT_FALSE(memory_.expired());
  *moved.data() = std::byte{1};
  moved = ArenaBlock();
  EXPECT_TRUE(memory_.expired());
  EXPECT_EQ(gpu_->live_events(), 0u) << "all events must be freed";
}

TEST_F(ArenaTest, CountsThePeak) {
  { const ArenaBlock block = arena_->allocate(5 * kUnit, left_); }
  const ArenaBlock block = arena_->allocate(2 * kUnit, left_);
  EXPECT_EQ(arena_->used(), 2 * kUnit);
  EXPECT_EQ(arena_->peak(), 5 * kUnit);
  EXPECT_EQ(arena_->capacity(), 8 * kUnit);
}

}  // namespace
}  // namespace tokenyard
