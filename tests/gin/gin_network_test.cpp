/// The contract of networks, over NCCL's GIN and a stand-in for NCCL.
#include "gin/gin_network.hpp"

#include <gtest/gtest.h>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_kernel_definitions.hpp"
#include "fabric/worlds.hpp"
#include "gin/stand_in.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::gin::testing {

TOKENYARD_DEFINE_HOST_KERNEL(stand_in_card_kernel, stand_in_card, StandInParams, NoShared,
                             CardParams::kWarps * 32)

namespace {

using namespace tokenyard::testing;

/// The card runs until it is stopped, or ends when it is idle and is run again.
class Gin : public ::testing::TestWithParam<bool> {
 protected:
  static void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program,
                        const GinOptions& options = {}, const CardOptions& wire = {},
                        size_t arena_bytes = 2 << 20,
                        std::chrono::nanoseconds timeout = std::chrono::seconds(60),
                        uint32_t runs = UINT32_MAX) {
    WorldOptions world;
    world.timeout = timeout;
    world.arena_bytes = arena_bytes;
    world.hosts = hosts;
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
    auto worlds = join_all(
        accelerators, std::make_shared<InProcessFabric>(hosts), world, {},
        over_stand_in({.run = cards_on_threads(), .options = wire}, GetParam(), options, runs));
    on_every_rank(ranks, [&](uint32_t rank) {
      const std::unique_ptr<World> mine = std::move(worlds[rank]);
      program(*mine);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Cards, Gin, ::testing::Bool(), [](const auto& keeps) {
  return std::string(keeps.param ? "kept" : "again");
});

TEST_P(Gin, SignalsFollowPuts) {
  run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 60); });
  run_hosts(4, 2, [](World& world) { signals_follow_puts(world, 20, {.in_arena = false}); });
  run_hosts(3, 3, [](World& world) { signals_follow_puts(world, 20); });
}

TEST_P(Gin, AFlushFreesSources) {
  run_hosts(4, 2, [](World& world) { flush_frees_sources(world); });
}

TEST_P(Gin, RingsKeepCredit) {
  run_hosts(2, 2, [](World& world) { rings_keep_credit(world, 1, 20); });
  run_hosts(3, 3, [](World& world) { rings_keep_credit(world, kRingSlots, 60); });
}

TEST_P(Gin, PairsFillTheQueue) {
  run_hosts(2, 2, [](World& world) { pairs_fill_the_queue(world, 500); });
}

TEST_P(Gin, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST_P(Gin, BadRequestsAreRefused) {
  for (uint32_t what = 0; what < kBadRequests; ++what)
    run_hosts(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
}

TEST_P(Gin, WhatWasPostedArrives) {
  for (uint32_t ending = 0; ending < kEndings; ++ending) {
    run_hosts(2, 2,
              [&](World& world) { what_was_posted_arrives(world, static_cast<Ending>(ending)); });
  }
}

TEST_P(Gin, CarriesLargePuts) {
  run_hosts(
      2, 2, [](World& world) { carries(world, 16 << 20); }, {}, {}, 64 << 20);
}

TEST_P(Gin, NetworksComeAndGo) {
  for (uint32_t cycle = 0; cycle < 20; ++cycle)
    run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 1); });
}

TEST_P(Gin, ReachesTheArenaAlone) {
  run_hosts(2, 2, [](World& world) {
    Network& network = *network_of(world);
    std::vector<std::byte> memory(64);
    EXPECT_THROW(network.register_memory(memory.data(), memory.size()), InvalidArgument);
    EXPECT_THROW(network.deregister(network.arena_key(world.rank())), InvalidArgument);
    EXPECT_FALSE(network.registers_memory());
    EXPECT_NE(world.topology().text().find("gin, a stand-in for NCCL"), std::string::npos)
        << world.topology().text();
    world.barrier("looked");
  });
}

TEST_P(Gin, SurvivorsRebuild) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    promise(network_of(*smaller)->arena_key(smaller->rank()) !=
                network_of(world)->arena_key(world.rank()),
            "keys of the world before must be refused");
    signals_follow_puts(*smaller, 5);
  });
}

// A way that does nothing more is a fault of the connection, whoever waits.
TEST_P(Gin, ASilentWayIsNamed) {
  GinOptions options;
  options.timeout = std::chrono::milliseconds(300);
  run_hosts(
      2, 2,
      [](World& world) {
        NetworkFixture fixture(world, {});
        RequestParams params = bad_case(BadRequest::wrong_tag, fixture, fixture.far_peer()).params;
        params.target = fixture.targets[fixture.far_peer()];
        try {
          fixture.run(network_request_kernel, {}, params);
          throw BrokenContract("a request over a dead wire has completed");
        } catch (const NetworkFault& error) {
          promise(error.facts.check == "connection" && error.facts.expected == 1 &&
                      error.facts.seen == 0,
                  error.what());
        }
        world.barrier("it was named");
      },
      options, {.dies_after = 1}, 2 << 20, std::chrono::seconds(2));
}

// Its waits end at once, and those of the other rank.
TEST_P(Gin, ACardThatFailsIsNamed) {
  if (GetParam()) return;  // A kept card is not run again.
  GinOptions options;
  options.idle = std::chrono::nanoseconds(1);  // Each request takes a run.
  run_hosts(
      2, 2,
      [](World& world) {
        try {
          signals_follow_puts(world, UINT32_MAX);
        } catch (const NetworkFault& error) {
          promise(error.facts.check == "thread" && error.facts.cause.ends_with("worn out"),
                  error.what());
        }
      },
      options, {}, 2 << 20, std::chrono::seconds(60), 3);
}

}  // namespace
}  // namespace tokenyard::gin::testing
