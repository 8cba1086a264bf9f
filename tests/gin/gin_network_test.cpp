/// The contract of networks, over NCCL's GIN and a stand-in for NCCL.
#include "gin/gin_network.hpp"

#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/network_kernel_definitions.hpp"
#include "fabric/network_suite.hpp"
#include "gin/stand_in.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/low_latency.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::gin::testing {

TOKENYARD_DEFINE_HOST_KERNEL(stand_in_card_kernel, stand_in_card, StandInParams, NoShared,
                             CardParams::kWarps * 32)

namespace {

using namespace tokenyard::testing;
using ::testing::HasSubstr;

NetworkWay over(const char* name, const StandInOptions& stand_in, const GinOptions& options = {}) {
  return {.name = name,
          .make =
              [=](uint32_t ranks, uint32_t hosts) {
                StandInOptions mine = stand_in;
                mine.cuts = std::make_shared<Cuts>();
                return ConnectedWorlds{
                    worlds_between_hosts(ranks, hosts, 64 << 20,
                                         over_stand_in({.run = cards_on_threads()}, mine, options)),
                    [cuts = mine.cuts](uint32_t one, uint32_t other) { cuts->cut(one, other); }};
              },
          .told = "gin, a stand-in for NCCL",
          .sizes = {4, 33 << 10, 16 << 20},
          .cycles = 20};
}

// The card runs until it is stopped, or ends when it is idle and is run again.
INSTANTIATE_TEST_SUITE_P(Over, NetworkContract,
                         ::testing::Values(over("kept", {.keeps = true}),
                                           over("again", {.keeps = false})),
                         name_of_way);

std::vector<std::unique_ptr<World>> worlds_over(uint32_t ranks, uint32_t hosts,
                                                const StandInOptions& stand_in,
                                                const GinOptions& options) {
  return worlds_between_hosts(ranks, hosts, 32 << 20,
                              over_stand_in({.run = cards_on_threads()}, stand_in, options));
}

/// Returns why no worlds were made.
std::string refusal(uint32_t ranks, uint32_t hosts, const StandInOptions& stand_in,
                    const GinOptions& options) {
  try {
    (void)worlds_over(ranks, hosts, stand_in, options);
    return "nothing";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(GinRails, ConnectRanksOfOnePlace) {
  GinOptions options;
  options.by_rail = true;
  std::atomic<uint32_t> strides = 0;
  StandInOptions stand_in;
  stand_in.on_join = [&](const CommunicatorPlace& place) { strides += place.stride; };
  run_as_ranks(worlds_over(4, 2, stand_in, options), [](World& world) {
    const uint32_t rail = (world.rank() + 2) % 4, other = rail ^ 1;
    const Topology& topology = world.topology();
    EXPECT_EQ(topology.peers[rail].reach, Reach::put_signal);
    EXPECT_THAT(topology.peers[rail].how, HasSubstr("by rail"));
    EXPECT_EQ(topology.peers[other].reach, Reach::none);
    EXPECT_THAT(topology.peers[other].why_not, HasSubstr("connects ranks of one place"));
    EXPECT_FALSE(network_of(world)->reaches(other));
    EXPECT_EQ(network_of(world)->arena_key(other), 0u);
    world.barrier("looked");
    // Exchanges that need rails alone work, and all others name a rank.
    for (const PeerTimes& times : time_peers(world, std::chrono::seconds(30))) {
      EXPECT_EQ(times.rank, rail);
      EXPECT_EQ(times.error, "");
    }
    const test::ExchangeCase tokens{.shape = {.ranks = 4, .experts = 16, .hidden = 64, .topk = 4},
                                    .tokens = {5, 0, 7, 3},
                                    .picking = {.none = 0.1},
                                    .sms = 2};
    EXPECT_EQ(test::difference_after_exchange(world, tokens), "");
    const auto refused = [](const auto& make) -> std::string {
      try {
        make();
        return "nothing";
      } catch (const Unsupported& error) {
        return error.what();
      }
    };
    EXPECT_THAT(refused([&] {
                  const LowLatency exchange(
                      world, {.experts = 8, .hidden = 512, .topk = 2, .tokens_max = 4});
                }),
                HasSubstr("cannot reach rank"));
    EXPECT_THAT(refused([&] { (void)megakernel::TensorMemory(world).shared(64); }),
                HasSubstr("in no way"));
    world.barrier("all have tried");
  });
  EXPECT_EQ(strides, 4 * 2u) << "each rank's";
}

TEST(GinRails, UnevenHostsAreRefused) {
  GinOptions options;
  options.by_rail = true;
  EXPECT_EQ(refusal(4, 2, {}, options), "nothing");
  run_as_ranks(worlds_over(4, 2, {}, options), [](World& world) {
    if (world.rank() == 1) return;
    try {
      (void)world.rebuild({1});
      ADD_FAILURE() << "hosts of 1 and of 2 ranks have no rails";
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), HasSubstr("hosts need equally many ranks"));
    }
  });
}

TEST(GinRefusals, OtherVersionsAndOptionsOnARankAreNamed) {
  StandInOptions stand_in;
  stand_in.version = [](uint32_t rank) { return 23203 + rank; };
  EXPECT_THAT(refusal(2, 2, stand_in, {}), HasSubstr("23203, as on rank 0"));
  EXPECT_THAT(refusal(2, 2, stand_in, {}), HasSubstr("23204"));
}

TEST(GinOptions, TransportNamesTheConnections) {
  EXPECT_TRUE(asks_for_gin({.transport = "gin"}));
  EXPECT_TRUE(asks_for_gin({.transport = "gin:rail"}));
  EXPECT_FALSE(asks_for_gin({.transport = "tcp"}));
  EXPECT_FALSE(gin_options_of({.transport = "gin"}).by_rail);
  EXPECT_TRUE(gin_options_of({.transport = "gin:rail"}).by_rail);
  try {
    (void)gin_options_of({.transport = "gin:full"});
    ADD_FAILURE() << "it was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "network.transport");
  }
}

// A way that does nothing more is a fault of the connection, whoever waits.
TEST(Gin, ASilentWayIsNamed) {
  for (const bool keeps : {true, false}) {
    GinOptions options;
    options.timeout = std::chrono::milliseconds(300);
    auto worlds = worlds_between_hosts(
        2, 2, 2 << 20,
        over_stand_in({.run = cards_on_threads(), .options = {.dies_after = 1}}, {.keeps = keeps},
                      options),
        {}, std::chrono::seconds(2));
    run_as_ranks(std::move(worlds), [](World& world) {
      NetworkFixture fixture(world, {});
      RequestParams params = bad_case(BadRequest::wrong_tag, fixture, fixture.far_peer()).params;
      params.target = fixture.targets[fixture.far_peer()];
      try {
        fixture.run(network_request_kernel, {}, params);
        throw BrokenContract("a request over a dead wire has completed");
      } catch (const NetworkFault& error) {
        promise(
            error.facts.check == "connection" && error.facts.expected == 1 && error.facts.seen == 0,
            error.what());
      }
      world.barrier("it was named");
    });
  }
}

// While the card does not run, nobody looks whether a flush has ended.
TEST(Gin, TimeInWhichTheCardDoesNotRunCountsForNoTimeout) {
  GinOptions options;
  options.idle = std::chrono::nanoseconds(1);  // Runs end with requests under way.
  options.timeout = std::chrono::milliseconds(100);
  const StandInOptions stand_in{.keeps = false, .pause = 2 * options.timeout, .slow_flush = true};
  run_as_ranks(worlds_over(2, 2, stand_in, options),
               [](World& world) { signals_follow_puts(world, 2); });
}

// Its waits end at once, and those of the other rank. A kept card is not run again.
TEST(Gin, ACardThatFailsIsNamed) {
  GinOptions options;
  options.idle = std::chrono::nanoseconds(1);  // Each request takes a run.
  run_as_ranks(worlds_over(2, 2, {.keeps = false, .runs = 3}, options), [](World& world) {
    try {
      signals_follow_puts(world, UINT32_MAX);
    } catch (const NetworkFault& error) {
      promise(error.facts.check == "thread" && error.facts.cause.ends_with("worn out"),
              error.what());
    }
  });
}

// Long before any deadline: its rank raises the fault, and the others mask that rank alone.
TEST(Gin, ACardThatFailsAmidLowLatencyHoldsUpNobody) {
  constexpr uint32_t kFailing = 1, kHidden = 64, kTokens = 4;
  GinOptions options;
  options.idle = std::chrono::nanoseconds(1);  // Each request takes a run.
  const auto start = std::chrono::steady_clock::now();
  run_as_ranks(worlds_between_hosts(
                   3, 3, 32 << 20,
                   over_stand_in({.run = cards_on_threads()},
                                 {.keeps = false, .runs = 1, .fails_on = kFailing}, options),
                   {}, std::chrono::seconds(60)),
               [&](World& world) {
                 LowLatency exchange(
                     world, {.experts = 3, .hidden = kHidden, .topk = 1, .tokens_max = kTokens});
                 test::LowLatencyCase of{
                     .shape = {.ranks = 3, .experts = 3, .hidden = kHidden, .topk = 1},
                     .tokens = std::vector<uint32_t>(3, kTokens)};
                 test::Survivor survivor(exchange, kFailing);
                 try {
                   for (uint32_t batches = 0; exchange.failed_ranks().empty(); ++batches) {
                     promise(batches < 400, "the card does not fail");
                     of.seed += 1;
                     test::SurvivorBatch batch(survivor, of, false);
                     batch.dispatch(false);
                     batch.combine(false);
                     exchange.check();
                     // The card becomes idle, so that the next batch takes another run.
                     std::this_thread::sleep_for(std::chrono::milliseconds(100));
                   }
                   exchange.check();
                   promise(world.rank() != kFailing, "its own rank was not told");
                 } catch (const NetworkFault& error) {
                   promise(world.rank() == kFailing && error.facts.check == "thread", error.what());
                   return;
                 }
                 const std::vector<FailedRank> masked = exchange.failed_ranks();
                 promise(masked.size() == 1 && masked[0].rank == kFailing, "another is masked");
               });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(110));
}

}  // namespace
}  // namespace tokenyard::gin::testing
