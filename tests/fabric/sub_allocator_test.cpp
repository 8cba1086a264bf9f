#include "fabric/sub_allocator.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tokenyard/error.hpp"

namespace tokenyard {
namespace {

constexpr uint64_t kUnit = SubAllocator::kAlignment;

}  // namespace

struct SubAllocatorCheck {
  /// Throws InternalError unless free and live pieces tile the region and no two free ones adjoin.
  static void check(const SubAllocator& pieces) {
    uint64_t at = 0;
    uint64_t used = 0;
    bool last_was_free = false;
    auto taken = pieces.live_.begin();
    auto open = pieces.free_.begin();
    while (taken != pieces.live_.end() || open != pieces.free_.end()) {
      const bool is_free = open != pieces.free_.end() && open->first == at;
      const bool is_live = taken != pieces.live_.end() && taken->first == at;
      if (is_free == is_live) {
        throw InternalError(fmt::format("arena: offset {} is {}", at,
                                        is_free ? "both free and live" : "neither free nor live"));
      }
      if (is_free && last_was_free) {
        throw InternalError(fmt::format("arena: adjacent free extents at {} are not merged", at));
      }
      if (is_free && !pieces.free_by_size_.contains({open->second, open->first})) {
        throw InternalError(fmt::format("arena: free extent at {} is not indexed", at));
      }
      const uint64_t bytes = is_free ? (open++)->second : (taken++)->second;
      if (bytes == 0 || bytes % kUnit != 0) {
        throw InternalError(fmt::format(
            "arena: {} bytes at {} are not a positive multiple of the alignment", bytes, at));
      }
      used += is_free ? 0 : bytes;
      last_was_free = is_free;
      at += bytes;
    }
    if (at != pieces.capacity_) throw InternalError("arena: pieces do not cover the region");
    if (used != pieces.used_) throw InternalError("arena: used bytes are miscounted");
    if (pieces.free_.size() != pieces.free_by_size_.size())
      throw InternalError("arena: index has extra extents");
  }
};

namespace {

/// Frees all of a live piece past its first `bytes`.
void trim(SubAllocator& pieces, uint64_t offset, uint64_t bytes) {
  if (const auto rest = pieces.split(offset, bytes)) pieces.free(*rest);
}

TEST(SubAllocator, RoundsToUnitsAndCountsWhatIsUsed) {
  SubAllocator pieces(10 * kUnit + 17);
  EXPECT_EQ(pieces.capacity(), 10 * kUnit);
  EXPECT_EQ(pieces.allocate(0), 0u);
  EXPECT_EQ(pieces.allocate(1), kUnit);
  EXPECT_EQ(pieces.allocate(kUnit + 1), 2 * kUnit);
  EXPECT_EQ(pieces.used(), 4 * kUnit);
  pieces.free(kUnit);
  EXPECT_EQ(pieces.used(), 3 * kUnit);
  EXPECT_EQ(pieces.peak(), 4 * kUnit);
  SubAllocatorCheck::check(pieces);
}

TEST(SubAllocator, TakesTheSmallestExtentThatFitsAndTheLowestOfEquals) {
  SubAllocator pieces(20 * kUnit);
  const uint64_t large = *pieces.allocate(4 * kUnit);
  (void)pieces.allocate(kUnit);
  const uint64_t small = *pieces.allocate(2 * kUnit);
  (void)pieces.allocate(kUnit);
  const uint64_t twin = *pieces.allocate(2 * kUnit);
  (void)pieces.allocate(kUnit);
  pieces.free(twin);
  pieces.free(large);
  pieces.free(small);
  EXPECT_EQ(pieces.allocate(2 * kUnit), small);
  EXPECT_EQ(pieces.allocate(2 * kUnit), twin);
  EXPECT_EQ(pieces.allocate(2 * kUnit), large);
  SubAllocatorCheck::check(pieces);
}

TEST(SubAllocator, TakesTheUpperEndOfTheHighestExtentThatFits) {
  SubAllocator pieces(8 * kUnit);
  EXPECT_EQ(pieces.allocate_high(2 * kUnit), 6 * kUnit);
  EXPECT_EQ(pieces.allocate_high(1), 5 * kUnit);
  pieces.free(6 * kUnit);
  EXPECT_EQ(pieces.allocate_high(3 * kUnit), 2 * kUnit);
  EXPECT_EQ(pieces.allocate_high(2 * kUnit), 6 * kUnit);
  EXPECT_EQ(pieces.allocate(2 * kUnit), 0u);
  EXPECT_FALSE(pieces.allocate_high(1));
  EXPECT_EQ(pieces.peak(), 8 * kUnit);
  SubAllocatorCheck::check(pieces);
}

TEST(SubAllocator, JoinsNeighboursOnBothSides) {
  SubAllocator pieces(3 * kUnit);
  for (uint64_t piece = 0; piece < 3; ++piece) ASSERT_EQ(pieces.allocate(kUnit), piece * kUnit);
  pieces.free(0);
  pieces.free(2 * kUnit);
  EXPECT_EQ(pieces.largest_free(), kUnit);
  EXPECT_FALSE(pieces.allocate(2 * kUnit));
  pieces.free(kUnit);
  EXPECT_EQ(pieces.largest_free(), 3 * kUnit);
  EXPECT_EQ(pieces.allocate(3 * kUnit), 0u);
}

TEST(SubAllocator, ASplitPieceGivesItsTailBack) {
  SubAllocator pieces(8 * kUnit);
  const uint64_t piece = *pieces.allocate(8 * kUnit);
  trim(pieces, piece, 3 * kUnit + 1);
  EXPECT_EQ(pieces.bytes_of(piece), 4 * kUnit);
  EXPECT_EQ(pieces.allocate(4 * kUnit), 4 * kUnit);
  trim(pieces, piece, 100 * kUnit);  // Nothing to free.
  trim(pieces, piece, 0);
  EXPECT_EQ(pieces.bytes_of(piece), kUnit);
  SubAllocatorCheck::check(pieces);
}

TEST(SubAllocator, RefusesWhatCannotBe) {
  SubAllocator pieces(4 * kUnit);
  EXPECT_FALSE(pieces.allocate(UINT64_MAX));
  EXPECT_FALSE(pieces.allocate(4 * kUnit + 1));
  EXPECT_THROW(pieces.free(0), InternalError);
  const uint64_t piece = *pieces.allocate(kUnit);
  pieces.free(piece);
  EXPECT_THROW(pieces.free(piece), InternalError);
  EXPECT_THROW(trim(pieces, piece, 1), InternalError);
  SubAllocator nothing(kUnit - 1);
  EXPECT_FALSE(nothing.allocate(0));
  SubAllocatorCheck::check(nothing);
}

/// Compares random calls with a map from units to owners; checks everything after each call.
TEST(SubAllocator, NeverGivesAUnitTwiceAndForgetsNone) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const uint64_t units = 1 + random() % 64;
    const uint64_t largest = 1 + random() % units;
    SubAllocator pieces(units * kUnit);
    std::vector<int> owner(units, -1);
    std::map<uint64_t, int> live;
    for (int step = 0; step < 500; ++step) {
      const uint32_t what = random() % 4;
      if (what < 2) {
        const uint64_t bytes = random() % (largest * kUnit);
        const uint64_t wanted = std::max<uint64_t>((bytes + kUnit - 1) / kUnit, 1);
        const auto offset = what == 0 ? pieces.allocate(bytes) : pieces.allocate_high(bytes);
        if (!offset) {
          EXPECT_LT(pieces.largest_free(), wanted * kUnit) << "seed " << seed;
          continue;
        }
        for (uint64_t unit = 0; unit < wanted; ++unit) {
          int& mine = owner.at(*offset / kUnit + unit);
          ASSERT_EQ(mine, -1) << "seed " << seed << " step " << step;
          mine = step;
        }
        live[*offset] = step;
      } else if (!live.empty()) {
        const auto piece = std::next(live.begin(), random() % live.size());
        const uint64_t first = piece->first / kUnit;
        const uint64_t size = pieces.bytes_of(piece->first) / kUnit;
        const uint64_t kept = what == 2 ? 0 : 1 + random() % size;
        for (uint64_t unit = kept; unit < size; ++unit) owner.at(first + unit) = -1;
        if (what == 2) {
          pieces.free(piece->first);
          live.erase(piece);
        } else {
          trim(pieces, piece->first, kept * kUnit);
        }
      }
      SubAllocatorCheck::check(pieces);
      ASSERT_EQ(pieces.used(),
                kUnit * static_cast<uint64_t>(std::count_if(owner.begin(), owner.end(),
                                                            [](int id) { return id >= 0; })));
    }
    for (const auto& [offset, id] : live) pieces.free(offset);
    EXPECT_EQ(pieces.largest_free(), pieces.capacity()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tokenyard
