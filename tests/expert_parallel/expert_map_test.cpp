/// Expert maps: which expert each place holds, and what becomes of the experts of lost ranks.
#include "tokenyard/expert_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/refused.hpp"
#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/reference.hpp"

namespace tokenyard::test {
namespace {

using Map = std::vector<int32_t>;

TEST(ExpertMap, ExpertsOfALostRankGoToEmptyPlacesOfTheOthers) {
  // 3 ranks of 3 places; rank 1 goes. Experts 2 and 3 lived only there, expert 0 on rank 0, too.
  const Map expert_at{0, 1, -1, 2, 0, 3, 4, -1, -1};
  EXPECT_EQ(spread_lost_experts(expert_at, {true, false, true}),
            (Map{0, 1, 3, -1, -1, -1, 4, 2, -1}));
}

TEST(ExpertMap, AMapOfRanksThatLiveStaysAsItIs) {
  const Map expert_at{3, -1, 3, 1};
  EXPECT_EQ(spread_lost_experts(expert_at, {true, true}), expert_at);
}

TEST(ExpertMap, ExpertsThatFindNoPlaceStayLost) {
  EXPECT_EQ(spread_lost_experts(Map{0, 1, 2, -1, 3, 4}, {true, true, false}),
            (Map{0, 1, 2, 3, -1, -1}));
  EXPECT_EQ(spread_lost_experts(Map{0, 1}, {false, false}), (Map{-1, -1}));
}

TEST(ExpertMap, RanksMayHaveUnequalNumbersOfPlaces) {
  // 7 places of 3 ranks: 3, 2 and 2.
  EXPECT_EQ(spread_lost_experts(Map{-1, -1, 0, 1, -1, 2, 3}, {true, true, false}),
            (Map{2, -1, 0, 1, 3, -1, -1}));
}

TEST(ExpertMap, AnExpertThatCannotBeIsRefused) {
  EXPECT_EQ(refused([] { spread_lost_experts(Map{0, -2}, {true}); }), "expert_at");
  EXPECT_EQ(refused([] { spread_lost_experts(Map{0}, {}); }), "living");
}

TEST(ExpertMap, WithoutOneEachRankHoldsItsShareInItsFirstPlaces) {
  EXPECT_EQ(plain_expert_map(5, 5, 3), (Map{0, 1, 2, 3, 4}));
  EXPECT_EQ(plain_expert_map(5, 9, 3), (Map{0, 1, -1, 2, 3, -1, 4, -1, -1}));
}

struct Drawn {
  uint32_t ranks, experts;
  Map expert_at;
  std::vector<bool> living;
};

Drawn draw(std::mt19937& random) {
  Drawn drawn{.ranks = 1 + static_cast<uint32_t>(random() % 9),
              .experts = 1 + static_cast<uint32_t>(random() % 40),
              .expert_at = {},
              .living = {}};
  const uint32_t places = static_cast<uint32_t>(random() % 60), empty = random() % 8;
  for (uint32_t place = 0; place < places; ++place)
    drawn.expert_at.push_back(
        random() % 8 < empty ? -1 : static_cast<int32_t>(random() % drawn.experts));
  for (uint32_t rank = 0; rank < drawn.ranks; ++rank) drawn.living.push_back(random() % 3 != 0);
  return drawn;
}

TEST(ExpertMap, WhateverIsLostTheResultIsAsFullAsItCanBeAndMovesNothingElse) {
  std::mt19937 random(5);
  for (uint32_t i = 0; i < 3000; ++i) {
    const Drawn drawn = draw(random);
    const Map spread = spread_lost_experts(drawn.expert_at, drawn.living);
    ASSERT_EQ(spread.size(), drawn.expert_at.size());
    const Shape places{.ranks = drawn.ranks,
                       .experts = static_cast<uint32_t>(spread.size()),
                       .hidden = 0,
                       .topk = 0};
    std::multiset<int32_t> placed;
    std::set<int32_t> survive;
    const std::set<int32_t> had(drawn.expert_at.begin(), drawn.expert_at.end());
    uint32_t empty = 0;
    std::vector<uint32_t> added(drawn.ranks), held(drawn.ranks), free(drawn.ranks);
    for (uint32_t rank = 0; rank < drawn.ranks; ++rank)
      for (uint32_t at = places.first_expert(rank);
           at < places.first_expert(rank) + places.local_experts(rank); ++at) {
        if (!drawn.living[rank]) {
          ASSERT_EQ(spread[at], -1) << "a rank that is gone";
          continue;
        }
        if (drawn.expert_at[at] >= 0) {
          ASSERT_EQ(spread[at], drawn.expert_at[at]) << "an expert that nobody lost";
          survive.insert(spread[at]);
        }
        if (spread[at] < 0) ++empty, ++free[rank];
        if (spread[at] >= 0) placed.insert(spread[at]), ++held[rank];
        if (spread[at] >= 0 && drawn.expert_at[at] < 0) ++added[rank];
      }
    for (int32_t expert = 0; expert < static_cast<int32_t>(drawn.experts); ++expert) {
      if (!survive.contains(expert)) {
        ASSERT_LE(placed.count(expert), 1u);
      }
      if (!had.contains(expert)) {
        ASSERT_FALSE(placed.contains(expert)) << "an expert that had no place before";
      } else if (!placed.contains(expert)) {
        ASSERT_EQ(empty, 0u) << "expert " << expert << " is lost beside an empty place";
        for (int32_t later = expert + 1; later < static_cast<int32_t>(drawn.experts); ++later)
          ASSERT_EQ(placed.count(later) != 0, survive.contains(later)) << "not in order";
      }
    }
    for (uint32_t one = 0; one < drawn.ranks; ++one)
      for (uint32_t other = 0; other < drawn.ranks; ++other)
        if (added[one] != 0 && free[other] != 0) {
          ASSERT_LE(held[one], held[other] + 1) << "not where the fewest experts are";
        }
  }
}

TEST(ExpertMap, AnIdThatIsNoExpertIsFoundAgainWhereverPlacesAre) {
  for (const uint32_t places : {8u, 12u})
    for (const int64_t id : {int64_t{-5}, int64_t{-1}, int64_t{8}, int64_t{9}, int64_t{11},
                             int64_t{12}, int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
      const int64_t hidden = misplaced(id, 8, places);
      EXPECT_TRUE(hidden < 0 || hidden >= places) << id;
      EXPECT_EQ(not_misplaced(hidden, 8, places), id);
      EXPECT_EQ(hidden == -1, id == -1);
    }
}

}  // namespace
}  // namespace tokenyard::test
