/// Dispatch and combine between hosts, checked bit for bit.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "expert_parallel/internode/host/rails.hpp"
#include "expert_parallel/internode/ordered_sums.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "expert_parallel/throughput/replay.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/arena.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/host_map.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::test {
namespace {

class BetweenHosts : public testing::Test {
 protected:
  static WorldOptions options(uint32_t hosts) {
    return {.timeout = std::chrono::seconds(60), .arena_bytes = size_t{64} << 20, .hosts = hosts};
  }
  static Outcomes run(uint32_t hosts, uint32_t ranks, const Body& body) {
    return run_ranks(World::in_process(ranks, "host", options(hosts)), body);
  }
  static void check(uint32_t hosts, const ExchangeCase& exchange_case,
                    const ExpertParallelOptions& options) {
    std::vector<uint32_t> host_of;
    for (uint32_t rank = 0; rank < exchange_case.shape.ranks; ++rank)
      host_of.push_back(rank * hosts / exchange_case.shape.ranks);
    check(host_of, exchange_case, options);
  }
  static void check(const std::vector<uint32_t>& host_of, const ExchangeCase& exchange_case,
                    const ExpertParallelOptions& options) {
    const std::vector<Tokens> all = exchange_case.draw();
    expect_none_failed(run(host_of, [&](World& world) {
      ExpertParallel exchange(world, options);
      const Tokens& mine = all[world.rank()];
      const TokensOnDevice tokens(accelerator_of(world), mine, true);
      const Expected expected = expected_on(exchange_case.shape, all, world.rank());
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      EXPECT_EQ(difference_after_combine(exchange, received, exchange_case.shape, mine, expected,
                                         {.with_weights = true}),
                "");
    }));
  }
  static void check(uint32_t hosts, const ExchangeCase& exchange_case) {
    expect_none_failed(run(hosts, exchange_case.shape.ranks, [&](World& world) {
      EXPECT_EQ(difference_after_exchange(world, exchange_case), "");
    }));
  }
  /// Runs ranks on hosts that may differ in size. `host_of`: [ranks].
  static Outcomes run(const std::vector<uint32_t>& host_of, const Body& body) {
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (size_t rank = 0; rank < host_of.size(); ++rank)
      accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
    return run_ranks(join_all(accelerators, std::make_shared<InProcessFabric>(host_of), options(1),
                              {.run = cards_on_threads()}),
                     body);
  }
  static ExchangeCase some_tokens(uint32_t ranks) {
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(5 + 7 * rank % 23);
    return {.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 64, .topk = 4},
            .tokens = tokens,
            .picking = {.none = 0.1},
            .sms = 2};
  }
};

TEST_F(BetweenHosts, EveryNumberOfHostsAndRanks) {
  for (const auto& [hosts, each] :
       {std::pair{2u, 1u}, {2u, 2u}, {2u, 3u}, {3u, 1u}, {3u, 2u}, {4u, 2u}}) {
    SCOPED_TRACE(testing::Message() << hosts << " hosts of " << each);
    check(hosts, some_tokens(hosts * each));
  }
}

TEST_F(BetweenHosts, ManyMoreTokensThanARingHasSlots) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {150, 0, 97, 1};
  exchange_case.sms = 3;
  check(2, exchange_case);
}

TEST_F(BetweenHosts, NoTokensAtAll) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {0, 0, 0, 0};
  check(2, exchange_case);
}

TEST_F(BetweenHosts, AllTokensToOneExpert) {
  ExchangeCase exchange_case = some_tokens(6);
  exchange_case.picking = {.one_expert = true};
  check(3, exchange_case);
}

/// All tokens want experts of one host, or of one rank.
TEST_F(BetweenHosts, AllTokensToOneHostAndOneRank) {
  const ExchangeCase exchange_case = some_tokens(6);
  const Shape& shape = exchange_case.shape;
  for (const auto& [first, experts] : {std::pair{8u, 8u}, {8u, 4u}, {20u, 4u}}) {
    SCOPED_TRACE(testing::Message() << experts << " experts from " << first);
    std::vector<Tokens> all = exchange_case.draw();
    for (Tokens& tokens : all)
      for (uint32_t token = 0; token < tokens.count; ++token)
        for (uint32_t choice = 0; choice < shape.topk; ++choice)
          tokens.ids[size_t{token} * shape.topk + choice] = first + (token + choice) % experts;
    expect_none_failed(run(3, 6, [&](World& world) {
      ExpertParallel exchange(world, exchange_case.options());
      const Tokens& mine = all[world.rank()];
      const TokensOnDevice tokens(accelerator_of(world), mine, true);
      const Expected expected = expected_on(shape, all, world.rank());
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      EXPECT_EQ(difference_after_combine(exchange, received, shape, mine, expected,
                                         {.with_weights = true}),
                "");
    }));
  }
}

TEST_F(BetweenHosts, ThreeHostsOfEight) {
  ExchangeCase exchange_case = some_tokens(24);
  exchange_case.shape.experts = 71;  // 24 ranks do not divide them.
  exchange_case.sms = 1;
  check(3, exchange_case);
}

/// 48, 64 and 96 ranks, of which some have no tokens; takes a minute.
TEST_F(BetweenHosts, DISABLED_ManyHostsOfEight) {
  for (const uint32_t hosts : {6u, 8u, 12u}) {
    SCOPED_TRACE(hosts);
    ExchangeCase exchange_case = some_tokens(8 * hosts);
    exchange_case.shape.experts = 3 * 8 * hosts - 5;
    exchange_case.tokens[1] = exchange_case.tokens[8 * hosts - 1] = 0;
    exchange_case.sms = 1;
    check(hosts, exchange_case);
  }
}

TEST_F(BetweenHosts, EightHostsOfOne) {
  check(8, some_tokens(8));
}

TEST_F(BetweenHosts, ExpertsThatTheRanksDoNotDivide) {
  for (const uint32_t experts : {3u, 7u, 13u}) {
    SCOPED_TRACE(experts);
    ExchangeCase exchange_case = some_tokens(4);
    exchange_case.shape.experts = experts;
    exchange_case.shape.topk = 3;
    check(2, exchange_case);
  }
}

TEST_F(BetweenHosts, ManyChoices) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.shape.experts = 80;
  exchange_case.shape.topk = 40;
  exchange_case.idx_is_int64 = false;
  check(2, exchange_case);
}

TEST_F(BetweenHosts, HostsOfDifferentSizes) {
  for (const std::vector<uint32_t>& host_of : {std::vector<uint32_t>{0, 1, 1},
                                               {0, 0, 0, 1},
                                               {0, 1, 1, 2, 2, 2},
                                               {0, 1, 0, 1, 1},
                                               {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    const ExchangeCase exchange_case = some_tokens(static_cast<uint32_t>(host_of.size()));
    expect_none_failed(run(host_of, [&](World& world) {
      EXPECT_EQ(difference_after_exchange(world, exchange_case), "");
    }));
  }
}

TEST_F(BetweenHosts, RandomShapesAndRings) {
  std::mt19937 random(38);
  for (uint32_t number = 0; number < 15; ++number) {
    std::vector<uint32_t> host_of;
    for (uint32_t host = 0; host < 2 + random() % 3; ++host)
      host_of.insert(host_of.end(), 1 + random() % 3, host);
    const auto ranks = static_cast<uint32_t>(host_of.size());
    ExchangeCase exchange_case{.shape = {.ranks = ranks,
                                         .experts = 2 + static_cast<uint32_t>(random() % 30),
                                         .hidden = 8 * (1 + static_cast<uint32_t>(random() % 20)),
                                         .topk = 1 + static_cast<uint32_t>(random() % 2)},
                               .tokens = {},
                               .picking = {.none = 0.2},
                               .sms = 1 + static_cast<uint32_t>(random() % 3),
                               .seed = number};
    for (uint32_t rank = 0; rank < ranks; ++rank)
      exchange_case.tokens.push_back(static_cast<uint32_t>(random() % 40));
    ExpertParallelOptions options = exchange_case.options();
    options.tuning.ring_rows = 1 + static_cast<uint32_t>(random() % 12);
    options.tuning.movers = 2 + static_cast<uint32_t>(random() % 4);
    options.tuning.chunk_rows = static_cast<uint32_t>(random() % 9);
    options.fp32_partials = random() % 2 == 0;
    SCOPED_TRACE(testing::Message() << "shape " << number);
    check(host_of, exchange_case, options);
  }
}

TEST_F(BetweenHosts, RowsOfEveryTypeWithAndWithoutScales) {
  const ExchangeCase exchange_case = some_tokens(4);
  const std::vector<Tokens> all = exchange_case.draw();
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const Expected expected = expected_on(exchange_case.shape, all, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    for (const RowFormat& format :
         {RowFormat{.type = DataType::float16},
          {.type = DataType::float32},
          {.type = DataType::float8_e4m3fn, .scale_words = 5},
          {.type = DataType::float8_e4m3fn, .scale_words = 3, .scale_order = ScaleOrder::columns},
          {.type = DataType::uint8, .row_bytes = 48, .scale_words = 20}})
      EXPECT_EQ(difference_in_format(exchange, tokens, expected, format), "")
          << name_of(format.type);
  }));
}

TEST_F(BetweenHosts, RowsByExpertAndPlacesForTheMost) {
  const ExchangeCase exchange_case = some_tokens(2);
  const std::vector<Tokens> all = exchange_case.draw();
  expect_none_failed(run(2, 2, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const Tokens& mine = all[world.rank()];
    const Expected expected = expected_on(exchange_case.shape, all, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), mine, true);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference_by_expert(exchange, received, exchange_case.shape, mine, 8), "");
    const RowsByExpert at_once = exchange.dispatch_by_expert(tokens.input(), {.alignment = 8});
    const ExpertRows after = exchange.group_by_expert(received, {.alignment = 8});
    exchange.wait();
    EXPECT_EQ(at_once.rows.first_rows, after.first_rows);
    EXPECT_EQ(difference_with_places(exchange, tokens, exchange_case.shape, mine, expected,
                                     2 * exchange_case.tokens_max()),
              "");
  }));
}

TEST_F(BetweenHosts, TheSameBitsForEveryNumberOfSmsAndEveryRing) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {37, 5, 0, 29};
  for (const uint32_t sms : {1u, 2u, 5u})
    for (const uint32_t ring_rows : {1u, 7u, 24u})
      for (const uint32_t movers : {2u, 5u}) {
        SCOPED_TRACE(testing::Message() << sms << " SMs, rings of " << ring_rows << ", " << movers);
        exchange_case.sms = sms;
        ExpertParallelOptions options = exchange_case.options();
        options.tuning.ring_rows = ring_rows;
        options.tuning.movers = movers;
        check(2, exchange_case, options);
      }
}

TEST_F(BetweenHosts, MoreLinksThanBlocks) {
  for (const uint32_t sms : {1u, 4u}) {
    SCOPED_TRACE(sms);
    ExchangeCase exchange_case = some_tokens(6);
    exchange_case.sms = sms;
    check(6, exchange_case);
  }
}

TEST_F(BetweenHosts, ExpertsWithReplicas) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.map = {
      .experts = 9, .expert_at = {2, 0, 5, -1, 1, 2, 3, 4, 6, 5, 2, -1, 7, 8, 0, 3}, .without = {}};
  const std::vector<Tokens> named = exchange_case.named(), placed = exchange_case.draw();
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    exchange.set_expert_map(exchange_case.map.expert_at);
    const Expected expected = expected_on(exchange_case.shape, placed, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), named[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference(exchange, received, expected), "");
    EXPECT_EQ(difference_after_combine(exchange, received, exchange_case.shape,
                                       placed[world.rank()], expected, {}),
              "");
  }));
}

TEST_F(BetweenHosts, BiasesAreAddedFirst) {
  const ExchangeCase exchange_case = some_tokens(4);
  const std::vector<Tokens> all = exchange_case.draw();
  const Outcomes outcomes = run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    Accelerator& accelerator = accelerator_of(world);
    const Shape& shape = exchange_case.shape;
    const Tokens& mine = all[world.rank()];
    const TokensOnDevice tokens(accelerator, mine, true);
    const Received received = exchange.dispatch(tokens.input());
    const Expected expected = expected_on(shape, all, world.rank());
    const DeviceArray<uint16_t> y(accelerator, expert_rows(shape, expected, world.rank(), 0));
    std::vector<std::vector<uint16_t>> biases(2, std::vector<uint16_t>(mine.x.size()));
    for (size_t i = 0; i < mine.x.size(); ++i) {
      biases[0][i] = to_bf16(static_cast<float>(i % 13) / 8);
      biases[1][i] = to_bf16(-static_cast<float>(i % 7) / 16);
    }
    const DeviceArray<uint16_t> first(accelerator, biases[0]), second(accelerator, biases[1]);
    const auto views = {ConstTensorView{}, ConstTensorView(first.bf16_rows(shape.hidden)),
                        ConstTensorView(second.bf16_rows(shape.hidden))};
    for (uint32_t count = 0; count <= 2; ++count) {
      DeviceArray<uint16_t> out(accelerator, mine.x.size());
      CombineInput input{.y = y.bf16_rows(shape.hidden)};
      for (uint32_t i = 0; i < count; ++i) input.biases[i] = views.begin()[1 + i];
      exchange.combine(input, *received.route, {.x = out.bf16_rows(shape.hidden)});
      exchange.wait();
      EXPECT_EQ(
          difference("out", out.read(),
                     expected_sums_between(shape, world.topology().host_of, mine, world.rank(), 0,
                                           {biases.begin(), biases.begin() + count})),
          "")
          << count << " biases";
    }
  });
  expect_none_failed(outcomes);
}

TEST(HostMap, EveryHostHasOneForwarderPerSource) {
  const HostMap map({0, 1, 1, 0, 2, 1});
  EXPECT_EQ(map.forwarder(5, 0), 0u);  // The third of its host has the first of two as its peer.
  EXPECT_EQ(map.forwarder(2, 0), 3u);
  EXPECT_EQ(map.forwarder(5, 2), 4u);
  EXPECT_EQ(map.peers_of(4), (std::vector<uint32_t>{0, 1, 2, 3, 5}));
  EXPECT_EQ(map.peers_of(5), (std::vector<uint32_t>{0, 4}));
  EXPECT_EQ(map.locals_max(), 3u);
  EXPECT_EQ(map.links_max(), 5u);
}

TEST(HostMap, AbsentRanksHaveNoPlaceAndForwardNothing) {
  const HostMap map({0, UINT32_MAX, 1, 0, 1}, {1});
  EXPECT_EQ(map.hosts(), 2u);
  EXPECT_EQ(map.members[0], (std::vector<uint32_t>{0, 3}));
  EXPECT_TRUE(map.is_absent(1));
  EXPECT_EQ(map.peers_of(2), (std::vector<uint32_t>{0}));
  EXPECT_TRUE(map.peers_of(1).empty());
}

/// Several calls on one object: each begins where the rings of the one before ended, and rows of
/// other formats cut them into other slots.
TEST_F(BetweenHosts, CallsFollowOneAnother) {
  ExchangeCase exchange_case = some_tokens(4);
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    for (uint32_t call = 0; call < 4; ++call) {
      ExchangeCase fresh = exchange_case;
      fresh.seed = call + 1;
      const std::vector<Tokens> all = fresh.draw();
      const Expected expected = expected_on(fresh.shape, all, world.rank());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      DispatchInput again = tokens.input();
      again.topk_idx = again.topk_weights = {};
      const Received repeated = exchange.dispatch(again, *received.route);
      EXPECT_EQ(difference(exchange, repeated, expected), "");
      EXPECT_EQ(difference_after_combine(exchange, received, fresh.shape, all[world.rank()],
                                         expected, {.with_weights = call % 2 == 0, .call = call}),
                "");
    }
  }));
}

TEST_F(BetweenHosts, ExchangesHaveQueuesOfTheirOwn) {
  const ExchangeCase exchange_case = some_tokens(2);
  expect_none_failed(run(2, 2, [&](World& world) {
    const auto make = [&] {
      return std::make_unique<ExpertParallel>(world, exchange_case.options());
    };
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const auto dispatch_on = [&](ExpertParallel& exchange) {
      EXPECT_EQ(difference(exchange, exchange.dispatch(tokens.input()),
                           expected_on(exchange_case.shape, all, world.rank())),
                "");
    };
    // The network has four queues per peer.
    std::array<std::unique_ptr<ExpertParallel>, 2> exchanges{make(), make()};
    EXPECT_TRUE(network_of(world)->claim_queues(1).empty());
    for (uint32_t round = 0; round < 2; ++round)
      for (const auto& exchange : exchanges) dispatch_on(*exchange);
    const size_t used = arena_of(world).used();
    try {
      make();
      ADD_FAILURE() << "a third exchange has found queues";
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find("TOKENYARD_NETWORK_QUEUES"), std::string::npos)
          << error.what();
    }
    // The words for ranks of the host stay: they were known before the refusal.
    EXPECT_LT(arena_of(world).used() - used, used / 8) << "a refused exchange keeps its rings";
    exchanges[world.rank()].reset();  // Each rank closes another one.
    const auto third = make();
    dispatch_on(*third);
    world.barrier("all have dispatched");
  }));
}

/// On hosts of different sizes, some links carry rows in one direction only, and results in the
/// other.
TEST_F(BetweenHosts, CallsFollowOneAnotherOnHostsOfDifferentSizes) {
  ExchangeCase exchange_case = some_tokens(3);
  expect_none_failed(run({0, 1, 0}, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    for (uint32_t call = 0; call < 3; ++call) {
      ExchangeCase fresh = exchange_case;
      fresh.seed = call + 1;
      const std::vector<Tokens> all = fresh.draw();
      const Expected expected = expected_on(fresh.shape, all, world.rank());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const Received received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference(exchange, received, expected), "");
      EXPECT_EQ(difference_after_combine(exchange, received, fresh.shape, all[world.rank()],
                                         expected, {.call = call}),
                "");
    }
  }));
}

TEST_F(BetweenHosts, ABadIdIsNamedOnAllRanksAndTheObjectWorksOn) {
  const ExchangeCase exchange_case = some_tokens(4);
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    Tokens mine = all[world.rank()];
    if (world.rank() == 2) mine.ids[5] = 999;
    const TokensOnDevice bad(accelerator_of(world), mine, true);
    try {
      exchange.dispatch(bad.input());
      ADD_FAILURE() << "rank " << world.rank() << " has accepted it";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.rank, 2u);
      EXPECT_NE(std::string(error.what()).find("expert 999 in token 1"), std::string::npos)
          << error.what();
    }
    const TokensOnDevice good(accelerator_of(world), all[world.rank()], true);
    EXPECT_EQ(difference(exchange, exchange.dispatch(good.input()),
                         expected_on(exchange_case.shape, all, world.rank())),
              "");
  }));
}

/// Ranks cut their rings by their own rows, so a ring may have more slots at one end.
TEST_F(BetweenHosts, RowsOfTwoFormatsAreRefusedAndTheObjectWorksOn) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {40, 33, 37, 31};
  ExpertParallelOptions options = exchange_case.options();
  options.tuning.ring_rows = 9;
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, options);
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const DeviceArray<float> wide(accelerator_of(world), all[world.rank()].x.size());
    const DeviceArray<uint8_t> narrow(accelerator_of(world), all[world.rank()].x.size());
    for (const DataType other : {DataType::float32, DataType::float8_e4m3fn}) {
      DispatchInput input = tokens.input();
      if (world.rank() == 2 && other == DataType::float32)
        input.x = wide.view(other, {tokens.count(), 64});
      if (world.rank() == 2 && other == DataType::float8_e4m3fn)
        input.x = narrow.view(other, {tokens.count(), 64});
      try {
        exchange.dispatch(input);
        ADD_FAILURE() << "rank " << world.rank() << " has accepted it";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.rank, 2u);
        EXPECT_EQ(error.argument, "x");
      }
      EXPECT_EQ(difference(exchange, exchange.dispatch(tokens.input()),
                           expected_on(exchange_case.shape, all, world.rank())),
                "");
    }
  }));
}

TEST_F(BetweenHosts, ARowThatNoRingHoldsIsRefusedAndTheObjectWorksOn) {
  const ExchangeCase exchange_case = some_tokens(4);
  ExpertParallelOptions options = exchange_case.options();
  options.tuning.ring_rows = 1;
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, options);
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    constexpr uint32_t kWide = 1024;
    const DeviceArray<uint8_t> wide(accelerator_of(world), size_t{tokens.count()} * kWide);
    DispatchInput input = tokens.input();
    input.x = wide.view(DataType::uint8, {tokens.count(), kWide});
    EXPECT_THROW(exchange.dispatch(input), InvalidArgument);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference(exchange, received, expected_on(exchange_case.shape, all, world.rank())),
              "");
    input.topk_idx = input.topk_weights = {};
    EXPECT_THROW(exchange.dispatch(input, *received.route), InvalidArgument);
    exchange.dispatch({.x = tokens.input().x}, *received.route);
    exchange.wait();
  }));
}

/// The words of one source are passed on although another one, whose link comes before, is late.
TEST_F(BetweenHosts, ALateSourceDelaysNoOther) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.sms = 1;
  std::atomic<const ExpertParallel*> heard = nullptr;
  expect_none_failed(run({0, 0, 1, 2}, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    if (world.rank() == 1) heard = &exchange;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(40);
    const auto is_early = [&] {
      const ExpertParallel* const of_rank_1 = heard;
      return of_rank_1 != nullptr && of_rank_1->load().waited_us[3] > 0;
    };
    while (world.rank() == 2 && !is_early()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "rank 3 was not heard";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    exchange.dispatch(tokens.input());
    exchange.wait();
    world.barrier("done");
  }));
}

TEST_F(BetweenHosts, DifferentCallsAreNamedOnAllRanks) {
  const ExchangeCase exchange_case = some_tokens(4);
  const Outcomes outcomes = run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    if (world.rank() == 3) {
      exchange.dispatch(tokens.input());
    } else {
      DeviceArray<uint16_t> out(accelerator_of(world), all[world.rank()].x.size());
      exchange.combine({.y = received.x}, *received.route, {.x = out.bf16_rows(64)});
    }
    exchange.wait();
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(error_of<InvalidArgument>(outcome).rank, 3u);
}

TEST_F(BetweenHosts, ASilentRankIsNamedWithItsHostAndRail) {
  ExchangeCase exchange_case = some_tokens(4);
  auto worlds = World::in_process(
      4, "host", {.timeout = std::chrono::seconds(3), .arena_bytes = size_t{64} << 20, .hosts = 2});
  const Outcomes outcomes = run_ranks(worlds, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    if (world.rank() != 3) exchange.dispatch(tokens.input());
  });
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto error = error_of<PeerTimeout>(outcomes[rank]);
    EXPECT_EQ(error.facts.rank, 3u) << error.what();
    EXPECT_NE(error.facts.phase.find("(host 1, rail 1)"), std::string::npos) << error.what();
  }
}

/// Ranks that wait for slots or credits of one that waits for the silent rank do not name that one.
TEST_F(BetweenHosts, ARankThatWaitsForASilentOneIsNotNamed) {
  ExchangeCase exchange_case = some_tokens(3);
  exchange_case.tokens = {40, 40, 40};
  exchange_case.picking = {};
  ExpertParallelOptions options = exchange_case.options();
  options.tuning.ring_rows = 1;
  const auto worlds = World::in_process(
      3, "host", {.timeout = std::chrono::seconds(2), .arena_bytes = size_t{64} << 20, .hosts = 3});
  const Outcomes outcomes = run_ranks(worlds, [&](World& world) {
    ExpertParallel exchange(world, options);
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    if (world.rank() != 2) exchange.dispatch(tokens.input());
  });
  for (uint32_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(error_of<PeerTimeout>(outcomes[rank]).facts.rank, 2u);
}

/// Each rank has other places, some of them none to spare. Rows of other hosts count, too.
TEST_F(BetweenHosts, PlacesForTheRowsAreEnough) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {9, 0, 40, 23};
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallelOptions options = exchange_case.options();
    options.tokens_max = 1000;
    ExpertParallel exchange(world, options);
    const std::vector<Tokens> all = exchange_case.draw();
    const Tokens& mine = all[world.rank()];
    const TokensOnDevice tokens(accelerator_of(world), mine, true);
    const Expected expected = expected_on(exchange_case.shape, all, world.rank());
    for (const uint32_t spare : {world.rank() * 3, 5u, 8000u})
      EXPECT_EQ(
          difference_with_places(exchange, tokens, exchange_case.shape, mine, expected, spare), "");
  }));
}

TEST_F(BetweenHosts, TooFewPlacesAreNamedOnAllRanks) {
  for (const std::vector<uint32_t>& host_of :
       {std::vector<uint32_t>{0, 0, 1, 1}, {0, 1, 1, 2}, {0, 0, 0, 1}})
    for (const std::vector<uint32_t>& full : {std::vector<uint32_t>{0}, {3}, {1, 2}}) {
      const ExchangeCase exchange_case = some_tokens(4);
      const std::vector<Tokens> all = exchange_case.draw();
      const uint32_t first = full.front();
      const auto rows =
          static_cast<uint32_t>(expected_on(exchange_case.shape, all, first).rows.size());
      ASSERT_GT(rows, 1u);
      const Outcomes outcomes = run(host_of, [&](World& world) {
        ExpertParallel exchange(world, exchange_case.options());
        const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
        DispatchInput input = tokens.input();
        const auto mine =
            static_cast<uint32_t>(expected_on(exchange_case.shape, all, world.rank()).rows.size());
        const bool is_full = std::ranges::find(full, world.rank()) != full.end();
        input.received_tokens_max = is_full ? mine - 1 : mine + world.rank();
        exchange.dispatch(input);
        exchange.wait();
      });
      for (const auto& outcome : outcomes) {
        const auto error = error_of<InvalidArgument>(outcome);
        EXPECT_EQ(error.argument, "received_tokens_max");
        EXPECT_EQ(error.expected, fmt::format("places for {} rows", rows));
        EXPECT_EQ(error.seen, std::to_string(rows - 1));
        EXPECT_EQ(error.rank, first);
      }
    }
}

TEST_F(BetweenHosts, AWatcherIsToldWhoHasCome) {
  for (const std::vector<uint32_t>& host_of :
       {std::vector<uint32_t>{0, 0, 1, 1}, {0, 1, 1, 2}, {0, 0, 0, 1}, {0, 1, 2, 3}}) {
    ExchangeCase exchange_case = some_tokens(4);
    exchange_case.tokens = {40, 0, 3, 31};
    const std::vector<Tokens> all = exchange_case.draw();
    expect_none_failed(run(host_of, [&](World& world) {
      ExpertParallel exchange(world, exchange_case.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const Expected expected = expected_on(exchange_case.shape, all, world.rank());
      EXPECT_EQ(difference_if_watched(exchange, tokens, expected), "");
      // Some ranks alone.
      DispatchInput input = tokens.input();
      if (world.rank() % 2 == 1) input.watcher = Stream{};
      const Received received = exchange.dispatch(input);
      EXPECT_EQ(difference(exchange, received, expected), "");
      EXPECT_EQ(received.sources_ready.given(), world.rank() % 2 == 1);
    }));
  }
}

TEST_F(BetweenHosts, RingsAreShownAndAsAskedFor) {
  const ExchangeCase exchange_case = some_tokens(4);
  expect_none_failed(run({0, 0, 0, 1}, [&](World& world) {
    ExpertParallelOptions options = exchange_case.options();
    const auto rings = [&] { return ExpertParallel(world, options).rings(); };
    const ExpertParallel::Rings chosen = rings();
    EXPECT_EQ(chosen.links, world.rank() == 3 ? 3u : 1u);
    EXPECT_EQ(chosen.ring_rows, 16u);
    EXPECT_EQ(chosen.chunk_rows, 2u);
    EXPECT_EQ(chosen.bytes % (2 * chosen.links), 0u);
    options.tuning.ring_rows = 40;
    EXPECT_EQ(rings().ring_rows, 40u);
    EXPECT_EQ(rings().chunk_rows, 5u);
    // A peer that has the link to itself gets smaller puts.
    EXPECT_EQ(rings().put_rows, world.rank() == 3 ? 10u : 5u);
    options.tuning.chunk_rows = 7;
    EXPECT_EQ(rings().chunk_rows, 7u);
    options.tuning.chunk_rows = 1000;
    EXPECT_EQ(rings().chunk_rows, 20u) << "half of a ring";
    world.barrier("done");
  }));
}

TEST_F(BetweenHosts, LinksAndRolesAreCounted) {
  ExchangeCase exchange_case = some_tokens(4);
  exchange_case.tokens = {40, 33, 37, 31};
  const std::vector<Tokens> all = exchange_case.draw();
  const Shape& shape = exchange_case.shape;
  // A slot of a dispatch, then one of a combine, in pieces of 16 bytes.
  const uint64_t slot = (shape.hidden * 2 + 4 + 12 * shape.topk + 15) / 16 * 16;
  const uint64_t sum = (shape.hidden * 2 + 4 * shape.topk + 15) / 16 * 16;
  expect_none_failed(run(2, 4, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const uint32_t rank = world.rank(), peer = (rank + 2) % 4;
    EXPECT_EQ(exchange.metrics().link_sent_bytes_by_peer, std::vector<uint64_t>(4));
    EXPECT_EQ(exchange.metrics().slowest_host, std::nullopt);
    // Returns the tokens of a source that go to the host with this first rank.
    const auto rows_to = [&](uint32_t source, uint32_t first) {
      uint64_t rows = 0;
      for (uint32_t token = 0; token < all[source].count; ++token)
        rows += goes_to(shape, all[source], token, first) ||
                        goes_to(shape, all[source], token, first + 1)
                    ? 1
                    : 0;
      return rows;
    };
    const uint64_t there = rows_to(rank, rank < 2 ? 2 : 0), here = rows_to(peer, rank < 2 ? 0 : 2);
    const TokensOnDevice tokens(accelerator_of(world), all[rank], true);
    const Expected expected = expected_on(shape, all, rank);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference_after_combine(exchange, received, shape, all[rank], expected, {}), "");
    const ExpertParallel::Metrics metrics = exchange.metrics();
    std::vector<uint64_t> sent(4), arrived(4);
    sent[peer] = there * slot + here * sum;
    arrived[peer] = here * slot + there * sum;
    EXPECT_EQ(metrics.link_sent_bytes_by_peer, sent);
    EXPECT_EQ(metrics.link_arrived_bytes_by_peer, arrived);
    EXPECT_EQ(metrics.link_row_wait_seconds_by_peer.size(), 4u);
    EXPECT_EQ(metrics.link_row_wait_seconds_by_peer[rank], 0);
    EXPECT_EQ(metrics.link_credit_wait_seconds_by_peer.size(), 4u);
    EXPECT_EQ(metrics.slowest_host, 1 - rank / 2);
    world.barrier("done");
  }));
}

TEST(Slowest, HostAndRailHaveTheLongestWaits) {
  const HostMap map({0, 0, 1, 1, 2, 2, 2});
  ExpertParallel::Metrics metrics;
  metrics.wait_seconds_by_peer = {0, 9, 1, 2, 3, 1, 0};
  metrics.link_credit_wait_seconds_by_peer = {0, 0, 1, 0, 0, 0, 0};
  metrics.link_row_wait_seconds_by_peer = {0, 0, 2, 0, 0, 0, 0};
  internode::find_slowest(map, 0, metrics);
  EXPECT_EQ(metrics.slowest_host, 1u);  // 6 seconds; host 2: 4. Rank 1 is of this host.
  EXPECT_EQ(metrics.slowest_rail, 1u);  // 12 seconds; rail 0: 7.
  metrics.link_row_wait_seconds_by_peer[4] = 9;
  internode::find_slowest(map, 0, metrics);
  EXPECT_EQ(metrics.slowest_host, 2u);
  EXPECT_EQ(metrics.slowest_rail, 0u);
  ExpertParallel::Metrics none;
  none.wait_seconds_by_peer = none.link_credit_wait_seconds_by_peer =
      none.link_row_wait_seconds_by_peer = std::vector<double>(7);
  internode::find_slowest(map, 3, none);
  EXPECT_EQ(none.slowest_host, std::nullopt);
  EXPECT_EQ(none.slowest_rail, std::nullopt);
}

TEST_F(BetweenHosts, PartialsThatDifferAreNamedOnAllRanks) {
  const ExchangeCase exchange_case = some_tokens(2);
  const Outcomes outcomes = run(2, 2, [&](World& world) {
    ExpertParallelOptions options = exchange_case.options();
    options.fp32_partials = world.rank() == 1;
    ExpertParallel exchange(world, options);
  });
  for (const auto& outcome : outcomes)
    EXPECT_EQ(error_of<InvalidArgument>(outcome).argument, "fp32_partials");
}

/// The calls that graphs replay, recorded on the host. Sums of a host's two rows are not rounded.
TEST_F(BetweenHosts, TheSameMemoryServesReplayAfterReplay) {
  for (const std::vector<uint32_t>& host_of :
       {std::vector<uint32_t>{0, 1}, {0, 0, 1, 1}, {0, 1, 2}}) {
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (size_t rank = 0; rank < host_of.size(); ++rank)
      accelerators.push_back(std::make_shared<RecordingAccelerator>());
    const auto ranks = static_cast<uint32_t>(host_of.size());
    expect_none_failed(
        run_ranks(join_all(accelerators, std::make_shared<InProcessFabric>(host_of), options(1),
                           {.run = cards_on_threads()}),
                  [&](World& world) {
                    check_throughput_replays(
                        world, replayed_throughput(ranks),
                        [&](Stream, const std::function<void()>& body) -> std::function<void()> {
                          return recording_accelerator(world).record(body);
                        });
                  }));
  }
}

/// Each token has an order of its own. An invalid one, which names ranks twice or no rank at all,
/// reads nothing else.
TEST_F(BetweenHosts, SumsFollowAnOrderOfRanks) {
  for (const std::vector<uint32_t>& host_of :
       {std::vector<uint32_t>{0, 1, 2}, {0, 0, 1, 1, 2}, {0, 1, 1}}) {
    const auto ranks = static_cast<uint32_t>(host_of.size());
    ExchangeCase exchange_case = some_tokens(ranks);
    exchange_case.shape.topk = 2 * ranks;
    const Shape& shape = exchange_case.shape;
    std::atomic<uint32_t> other_bits = 0;
    expect_none_failed(run(host_of, [&](World& world) {
      ExpertParallel exchange(world, exchange_case.options());
      const std::vector<Tokens> all = exchange_case.draw();
      const Tokens& mine = all[world.rank()];
      const TokensOnDevice tokens(accelerator_of(world), mine, true);
      const Expected expected = expected_on(shape, all, world.rank());
      const Received received = exchange.dispatch(tokens.input());
      std::vector<uint32_t> ascending, turned, invalid;
      for (uint32_t token = 0; token < mine.count; ++token)
        for (uint32_t turn = 0; turn < ranks; ++turn) {
          ascending.push_back(turn);
          turned.push_back((token + ranks - turn) % ranks);
          invalid.push_back(turn % 2 == 0 ? world.rank() : ranks + turn);
        }
      for (const std::vector<uint32_t>& order : {ascending, turned, invalid})
        for (const uint32_t biases : {0, 2})
          EXPECT_EQ(difference_after_ordered_combine(exchange, received, shape, host_of, mine,
                                                     expected, order, biases),
                    "");
      if (sums_in_order(shape, host_of, mine, world.rank(), turned, 0) !=
          sums_in_order(shape, host_of, mine, world.rank(), ascending, 0))
        ++other_bits;
    }));
    EXPECT_GE(other_bits, 1u) << "the order must matter";
  }
}

TEST_F(BetweenHosts, MemoryIsToldBeforeItIsTaken) {
  ExchangeCase exchange_case = some_tokens(6);
  ExpertParallelOptions options = exchange_case.options();
  options.tuning.ring_rows = 1000;
  const ExpertParallel::Memory near = ExpertParallel::memory(options, 6, 1, 1);
  const ExpertParallel::Memory told = ExpertParallel::memory(options, 6, 1, 1, {}, 3);
  EXPECT_EQ(near.network_bytes, 0u);
  EXPECT_THROW(ExpertParallel::memory(options, 6, 1, 1, {}, 7), InvalidArgument);
  expect_none_failed(run(3, 6, [&](World& world) {
    const size_t before = arena_of(world).used();
    ExpertParallel exchange(world, options);
    EXPECT_EQ(arena_of(world).used() - before, told.arena_bytes + told.network_bytes);
    EXPECT_LE(exchange.rings().bytes, told.network_bytes);
    // A route's tables.
    const std::vector<Tokens> all = exchange_case.draw();
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const size_t made = arena_of(world).used();
    Received received = exchange.dispatch(tokens.input());
    const ExpertParallel::Memory call =
        ExpertParallel::memory(options, 6, tokens.count(), received.rows, {}, 3);
    EXPECT_EQ(arena_of(world).used() - made, call.kept_bytes);
    const std::optional<Route> route = received.route;
    received = {};
    EXPECT_EQ(arena_of(world).used() - made, call.kept_by_route_bytes);
    world.barrier("done");
  }));
}

}  // namespace
}  // namespace tokenyard::test
