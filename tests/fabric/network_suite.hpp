/// The contract of networks between ranks that are threads of this process, as one suite for all
/// ways. A program's one file that includes this instantiates it:
///
///     INSTANTIATE_TEST_SUITE_P(Over, NetworkContract, ::testing::ValuesIn(ways), name_of_way);
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "fabric/network_contract.hpp"
#include "fabric/network_ways.hpp"
#include "tokenyard/doctor.hpp"

namespace tokenyard::testing {

inline std::string name_of_way(const ::testing::TestParamInfo<NetworkWay>& way) {
  return way.param.name;
}

class NetworkContract : public ::testing::TestWithParam<NetworkWay> {
 protected:
  static void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program) {
    run_as_ranks(GetParam().make(ranks, hosts).ends, program);
  }
};

TEST_P(NetworkContract, SignalsFollowPuts) {
  run_hosts(2, 2, [](World& world) {
    EXPECT_THAT(world.topology().peers[1 - world.rank()].how,
                ::testing::HasSubstr(GetParam().told));
    signals_follow_puts(world, 60);
  });
  run_hosts(4, 2, [](World& world) { signals_follow_puts(world, 20, {.in_arena = false}); });
  run_hosts(3, 3, [](World& world) { signals_follow_puts(world, 10); });
}

TEST_P(NetworkContract, AFlushFreesSources) {
  run_hosts(4, 2, [](World& world) { flush_frees_sources(world); });
}

TEST_P(NetworkContract, RingsKeepCredit) {
  run_hosts(2, 2, [](World& world) { rings_keep_credit(world, 1, 20); });
  run_hosts(3, 3, [](World& world) { rings_keep_credit(world, kRingSlots, 60); });
}

TEST_P(NetworkContract, PairsFillTheQueue) {
  run_hosts(2, 2, [](World& world) { pairs_fill_the_queue(world, 500); });
}

TEST_P(NetworkContract, WarpsShareAQueue) {
  if (!GetParam().shares_queues) return;
  for (const uint32_t blocks : {1, 2, 4})
    run_hosts(4, 2, [&](World& world) { warps_share_a_queue(world, blocks, kSharers / blocks); });
}

TEST_P(NetworkContract, CarriesPutsOfAnySize) {
  for (const uint32_t bytes : GetParam().sizes)
    run_hosts(2, 2, [&](World& world) { carries(world, bytes); });
}

TEST_P(NetworkContract, DeregisteringEndsAccesses) {
  for (uint32_t run = 0; run < 5; ++run) {
    run_hosts(2, 2, [](World& world) {
      if (network_of(world)->registers_memory()) deregistering_ends_accesses(world);
    });
  }
}

TEST_P(NetworkContract, RegionsAreCountedAndKeysChecked) {
  run_hosts(2, 2, [](World& world) {
    Network& network = *network_of(world);
    // It begins within a page.
    std::vector<std::byte> memory(5000);
    std::byte* const begin = memory.data() + 9;
    if (!network.registers_memory()) {
      EXPECT_THROW(network.register_memory(begin, 100), InvalidArgument);
    } else {
      const MemoryKey first = network.register_memory(begin, 100);
      network.deregister(first);
      const MemoryKey second = network.register_memory(begin, 100);
      EXPECT_NE(first, second);
      EXPECT_EQ(region_of_key(first), region_of_key(second));
      EXPECT_THROW(network.deregister(first), InvalidArgument);
      EXPECT_THROW(network.register_memory(nullptr, 1), InvalidArgument);
      const auto register_many = [&] {
        for (uint32_t region = 0; region < 1000; ++region)
          (void)network.register_memory(memory.data(), memory.size());
      };
      EXPECT_THROW(register_many(), InvalidArgument);
    }
    EXPECT_THROW(network.deregister(network.arena_key(world.rank())), InvalidArgument);
    world.barrier("counted");
  });
}

TEST_P(NetworkContract, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST_P(NetworkContract, BadRequestsAreRefused) {
  if (GetParam().differs_in_order) return;
  for (uint32_t what = 0; what < kBadRequests; ++what) {
    SCOPED_TRACE(what);
    run_hosts(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
  }
}

TEST_P(NetworkContract, AFaultEndsWithItsExchange) {
  if (GetParam().differs_in_order) return;
  run_hosts(2, 2, a_fault_ends_with_its_exchange);
}

TEST_P(NetworkContract, WhatWasPostedArrives) {
  for (uint32_t ending = 0; ending < kEndings; ++ending) {
    run_hosts(2, 2,
              [&](World& world) { what_was_posted_arrives(world, static_cast<Ending>(ending)); });
  }
}

TEST_P(NetworkContract, AKilledRankIsNamed) {
  std::latch over(3);
  run_hosts(3, 3, [&](World& world) { names_the_killed(world, over); });
}

/// Both ends name each other, and the third rank is measured, or hears whose network has failed.
TEST_P(NetworkContract, APartitionIsNamed) {
  ConnectedWorlds worlds = GetParam().make(3, 3);
  if (!worlds.cut) return;
  worlds.cut(0, 1);
  std::vector<std::vector<PeerTimes>> times(3);
  run_as_ranks(std::move(worlds.ends), [&](World& world) {
    times[world.rank()] = time_peers(world, std::chrono::seconds(3));
  });
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (const PeerTimes& each : times[rank]) {
      if (rank + each.rank == 1) {
        EXPECT_THAT(each.error, ::testing::HasSubstr("rank " + std::to_string(each.rank)));
      } else if (each.error.empty()) {
        EXPECT_GT(each.bytes_per_second, 0);
      } else {
        EXPECT_THAT(each.error, ::testing::HasSubstr("since the network of rank"));
      }
    }
  }
}

/// Survivors have a network of their own, which accepts nothing of the world before.
TEST_P(NetworkContract, SurvivorsRebuildAcrossHosts) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    promise(smaller->topology().host_of == std::vector<uint32_t>{0, 1, 1},
            "survivors must keep their hosts");
    signals_follow_puts(*smaller, 5);
    const uint32_t peer = smaller->rank() == 0 ? 1 : 0;
    refuses_old_key(*smaller, peer, network_of(world)->arena_key(peer == 0 ? 0 : 2));
  });
}

TEST_P(NetworkContract, TwoWorldsAtATime) {
  ConnectedWorlds one = GetParam().make(2, 2), other = GetParam().make(2, 2);
  std::ranges::move(other.ends, std::back_inserter(one.ends));
  run_as_ranks(std::move(one.ends), [](World& world) { signals_follow_puts(world, 10); });
}

TEST_P(NetworkContract, NetworksComeAndGo) {
  for (uint32_t cycle = 0; cycle < GetParam().cycles; ++cycle)
    run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 1); });
}

}  // namespace tokenyard::testing
