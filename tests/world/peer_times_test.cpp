/// The doctor's measurement of a world's network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "fabric/ranks.hpp"
#include "tokenyard/doctor.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::vector<std::unique_ptr<World>> worlds_of(uint32_t ranks, uint32_t hosts,
                                              size_t arena_bytes = 8 << 20) {
  return World::in_process(ranks, "host",
                           {.timeout = 60s, .arena_bytes = arena_bytes, .hosts = hosts});
}

TEST(PeerTimes, EveryPairIsMeasuredOnce) {
  for (const uint32_t hosts : {2u, 3u, 5u}) {
    SCOPED_TRACE(hosts);
    auto worlds = worlds_of(hosts, hosts);
    std::vector<std::vector<PeerTimes>> times(hosts);
    on_every_rank(hosts, [&](uint32_t rank) { times[rank] = time_peers(*worlds[rank], 60s); });
    for (uint32_t rank = 0; rank < hosts; ++rank) {
      std::set<uint32_t> peers;
      for (const PeerTimes& each : times[rank]) {
        peers.insert(each.rank);
        EXPECT_EQ(each.error, "");
        EXPECT_GT(each.round_trip_us, 0);
        EXPECT_GT(each.bytes_per_second, 0);
        EXPECT_NE(each.how, "");
        for (const PeerTimes& other : times[each.rank]) {
          if (other.rank == rank) {
            EXPECT_EQ(other.round_trip_us, each.round_trip_us);
          }
        }
      }
      EXPECT_EQ(peers.size(), hosts - 1);
      EXPECT_EQ(times[rank].size(), hosts - 1);
    }
  }
}

TEST(PeerTimes, RanksWithinReachAreNotMeasured) {
  auto worlds = worlds_of(4, 2);
  on_every_rank(4, [&](uint32_t rank) {
    const std::vector<PeerTimes> times = time_peers(*worlds[rank], 60s);
    EXPECT_EQ(times.size(), 2u) << "the ranks of the other host";
  });
  auto near = worlds_of(2, 1);
  on_every_rank(2, [&](uint32_t rank) { EXPECT_TRUE(time_peers(*near[rank], 1s).empty()); });
}

TEST(PeerTimes, WhatIsMissingIsToldOnEveryRank) {
  auto worlds = worlds_of(2, 2, 1 << 20);
  on_every_rank(2, [&](uint32_t rank) {
    try {
      (void)time_peers(*worlds[rank], 60s);
      ADD_FAILURE() << "it was measured";
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), HasSubstr("of its arena"));
    }
  });
}

}  // namespace
}  // namespace tokenyard
