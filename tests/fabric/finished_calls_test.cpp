#include "fabric/finished_calls.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/ranks.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const WorldOptions kSmall{.timeout = std::chrono::seconds(60), .arena_bytes = 1 << 16};

std::optional<FinishedCalls> finished(uint64_t calls) {
  return FinishedCalls{calls, {std::byte(calls), std::byte(7)}};
}

TEST(FinishedCalls, AgreeOnTheLastThatAllHaveWhoGoOn) {
  auto worlds = World::in_process(4, "host", kSmall);
  on_every_rank(4, [&](uint32_t rank) {
    const std::array mine{finished(6), finished(5), std::optional<FinishedCalls>(), finished(5)};
    const AgreedCalls agreed = agree_on_calls(*worlds[rank], "exchange", mine[rank]);
    EXPECT_EQ(agreed.finished, 5u);
    EXPECT_EQ(agreed.first, 1u);
    EXPECT_THAT(agreed.state(), ElementsAre(std::byte(5), std::byte(7)));
    EXPECT_THAT(agreed.newcomers, ElementsAre(2));
    EXPECT_EQ(agreed.ranks[0]->finished, 6u);
    EXPECT_FALSE(agreed.ranks[2]);
  });
}

TEST(FinishedCalls, NobodyIsANewcomerWhereAllAreNew) {
  auto worlds = World::in_process(2, "host", kSmall);
  on_every_rank(2, [&](uint32_t rank) {
    const AgreedCalls agreed = agree_on_calls(*worlds[rank], "exchange", std::nullopt);
    EXPECT_EQ(agreed.finished, 0u);
    EXPECT_FALSE(agreed.first);
    EXPECT_THAT(agreed.state(), IsEmpty());
    EXPECT_THAT(agreed.newcomers, IsEmpty());
  });
}

TEST(FinishedCalls, NameARankOfAnotherBuild) {
  auto worlds = World::in_process(2, "host", kSmall);
  on_every_rank(2, [&](uint32_t rank) {
    if (rank == 1) {
      const std::byte other{1};
      worlds[rank]->all_gather({&other, 1}, "exchange: finished calls");
      return;
    }
    try {
      agree_on_calls(*worlds[rank], "exchange", finished(1));
      ADD_FAILURE() << "one byte is no word";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.rank, 1u);
    }
  });
}

TEST(FinishedCalls, ASuccessorIsNotTheRankThatWasThere) {
  const auto before = World::in_process(1, "host", kSmall);
  const auto now = World::in_process(1, "host", kSmall);
  EXPECT_THAT(lost_between(*before[0], *now[0], {}), IsEmpty());
  EXPECT_THAT(lost_between(*before[0], *now[0], {0}), ElementsAre(0));
}

}  // namespace
}  // namespace tokenyard
