/// Calls that no host waits for: outputs of fixed size, equal bit for bit to those of waiting calls
/// where rows arrived, and marked where none did.
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "expert_parallel/throughput/replay.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

const ExchangeCase kCase{.shape = {.ranks = 4, .experts = 16, .hidden = 72, .topk = 4},
                         .tokens = {20, 33, 0, 14},
                         .picking = {.none = 0.2}};
constexpr uint32_t kPlaces = 90;

class FixedSize : public OnDevice {};

/// Returns the valid part of a fixed-size output, as a waiting call would return it.
Received valid_part(const Received& fixed, const Expected& expected) {
  Received valid = fixed;
  valid.rows = static_cast<uint32_t>(expected.rows.size());
  valid.rows_from = expected.rows_from;
  valid.tokens_per_expert = expected.tokens_per_expert;
  return valid;
}

TEST_P(FixedSize, ValidRowsAreThoseOfTheWaitingForm) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    Accelerator& accelerator = accelerator_of(world);
    const Tokens& mine = tokens_of[world.rank()];
    const Expected expected = expected_on(kCase.shape, tokens_of, world.rank());
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator, mine, true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = kPlaces;
    const Received received = exchange.dispatch(input);
    EXPECT_EQ(received.rows, kPlaces);
    EXPECT_TRUE(received.rows_from.empty());
    EXPECT_EQ(difference(exchange, valid_part(received, expected), expected), "");
    const size_t rows = expected.rows.size();
    const auto ids =
        read_back(accelerator, received.topk_idx.as<int32_t>(), kPlaces * kCase.shape.topk);
    const auto weights =
        read_back(accelerator, received.topk_weights.as<float>(), kPlaces * kCase.shape.topk);
    const auto sources = read_back(accelerator, received.source_token.as<int32_t>(), kPlaces);
    for (size_t row = rows; row < kPlaces; ++row) {
      EXPECT_EQ(sources[row], -1);
      for (size_t choice = row * kCase.shape.topk; choice < (row + 1) * kCase.shape.topk;
           ++choice) {
        EXPECT_EQ(ids[choice], -1);
        EXPECT_EQ(weights[choice], 0);
      }
    }
    EXPECT_EQ(read_back(accelerator, received.rows_from_on_device.as<uint32_t>(), 4),
              expected.rows_from);
    EXPECT_EQ(read_back(accelerator, received.tokens_per_expert_on_device.as<uint32_t>(), 4),
              expected.tokens_per_expert);
    // A second dispatch and a combine on the same route.
    const Received again = exchange.dispatch({.x = tokens.input().x}, *received.route);
    EXPECT_EQ(difference(exchange, valid_part(again, expected), expected), "");
    std::vector<uint16_t> y = expert_rows(kCase.shape, expected, world.rank());
    y.resize(size_t{kPlaces} * kCase.shape.hidden, 0x7fff);
    const DeviceArray<uint16_t> results(accelerator, y);
    DeviceArray<uint16_t> out(accelerator, mine.x.size());
    out.poison();
    exchange.combine({.y = results.bf16_rows(exchange.options().hidden)}, *received.route,
                     {.x = out.bf16_rows(exchange.options().hidden)});
    exchange.wait();
    EXPECT_EQ(difference("out", out.read(), expected_sums(kCase.shape, mine, world.rank())), "");
  }));
}

// On a GPU the earlier calls have hardly begun when the host starts to wait for its counts; it must
// not take their counts for its own.
TEST_P(FixedSize, ACallThatWaitsLearnsItsOwnCountsBehindCallsThatDoNot) {
  const auto all = worlds(4);
  ExchangeCase other = kCase;
  other.tokens = {3, 5, 8, 1};
  const std::vector<Tokens> many = kCase.draw(), few = other.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    const Expected expected = expected_on(kCase.shape, few, world.rank());
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice before(accelerator_of(world), many[world.rank()], true);
    const TokensOnDevice tokens(accelerator_of(world), few[world.rank()], true);
    DispatchInput unwaited = before.input();
    unwaited.received_tokens_max = kPlaces;
    std::vector<Received> kept;
    for (uint32_t call = 0; call < 8; ++call) kept.push_back(exchange.dispatch(unwaited));
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference(exchange, received, expected), "");
  }));
}

TEST_P(FixedSize, EveryRankMayHaveItsOwnNumberOfPlaces) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    const Expected expected = expected_on(kCase.shape, tokens_of, world.rank());
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    DispatchInput input = tokens.input();
    // Rank 0 waits; the others have spare places.
    input.received_tokens_max = world.rank() == 0 ? 0 : 70 + 10 * world.rank();
    const Received received = exchange.dispatch(input);
    EXPECT_EQ(difference(exchange, valid_part(received, expected), expected), "");
  }));
}

TEST_P(FixedSize, RowsWithoutAPlaceAreRefusedOnAllRanks) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  const auto outcomes = run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = world.rank() == 1 ? 7 : kPlaces;
    exchange.dispatch(input);
    exchange.wait();
  });
  const size_t coming = expected_on(kCase.shape, tokens_of, 1).rows.size();
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "received_tokens_max");
    EXPECT_EQ(error.expected, fmt::format("places for {} rows", coming));
    EXPECT_EQ(error.seen, "7");
    EXPECT_EQ(error.rank, 1u);
  }
}

TEST_P(FixedSize, ABadTokenIsNamedOnceTheWorkIsAwaited) {
  const auto all = worlds(4);
  std::vector<Tokens> tokens_of = kCase.draw();
  tokens_of[1].ids[5] = 99;
  const auto outcomes = run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = kPlaces;
    exchange.dispatch(input);
    exchange.wait();
  });
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "topk_idx");
    EXPECT_EQ(error.seen, "expert 99 in token 1");
    EXPECT_EQ(error.rank, 1u);
  }
}

TEST_P(FixedSize, RowsByExpertNeedNoHostEither) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    Accelerator& accelerator = accelerator_of(world);
    const Expected expected = expected_on(kCase.shape, tokens_of, world.rank());
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator, tokens_of[world.rank()], true);
    const Received waited = exchange.dispatch(tokens.input());
    const ExpertRows rows = exchange.group_by_expert(waited, {.alignment = 8});
    DispatchInput input = tokens.input();
    input.received_tokens_max = kPlaces;
    const Received fixed = exchange.dispatch(input);
    const ExpertRows places =
        exchange.group_by_expert(fixed, {.alignment = 8, .rows_max = rows.rows + 9});
    exchange.wait();
    const size_t count = size_t{rows.rows} * kCase.shape.hidden;
    EXPECT_EQ(read_back(accelerator, places.x.as<uint16_t>(), count),
              read_back(accelerator, rows.x.as<uint16_t>(), count));
    auto row_of = read_back(accelerator, rows.row_of.as<int32_t>(), rows.rows);
    row_of.resize(rows.rows + 9, -1);
    EXPECT_EQ(read_back(accelerator, places.row_of.as<int32_t>(), places.rows), row_of);
    EXPECT_EQ(read_back(accelerator, places.offsets.as<int32_t>(), 5),
              read_back(accelerator, rows.offsets.as<int32_t>(), 5));
  }));
}

TEST_P(FixedSize, TooFewPlacesByExpertAreNamed) {
  const auto all = worlds(1);
  const ExchangeCase alone{.shape = {.ranks = 1, .experts = 4, .hidden = 16, .topk = 2},
                           .tokens = {9}};
  const std::vector<Tokens> tokens_of = alone.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, alone.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[0], true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = 9;
    const Received fixed = exchange.dispatch(input);
    try {
      exchange.group_by_expert(fixed, {.alignment = 1, .rows_max = 17});
      exchange.wait();
      FAIL() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "rows_max");
      EXPECT_EQ(error.expected, "places for 18 rows");
    }
  }));
}

/// The calls that throughput/graph_gpu_test.cpp replays from a graph, made anew each time.
TEST_P(FixedSize, TheSameCallsRunOverOtherData) {
  for (const uint32_t ranks : {1, 3}) {
    const auto all = worlds(ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      const size_t before = arena_of(world).used();
      check_throughput_replays(world, replayed_throughput(ranks),
                               [](Stream, const std::function<void()>& body) { return body; });
      // Everything is freed: the object was closed properly although its stream was destroyed
      // before it.
      EXPECT_EQ(arena_of(world).used(), before);
    }));
  }
}

/// Counts of tokens, waits for other ranks, and times of blocks' moments.
TEST_P(FixedSize, CallsLeaveNumbersBehind) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    const Expected expected = expected_on(kCase.shape, tokens_of, world.rank());
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    EXPECT_TRUE(exchange.last_trace().empty());
    exchange.trace_calls(true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = kPlaces;
    for (uint32_t call = 1; call <= 3; ++call) {
      exchange.dispatch(input);
      exchange.wait();
      const ExpertParallel::Load load = exchange.load();
      for (uint32_t expert = 0; expert < 4; ++expert)
        EXPECT_EQ(load.tokens_per_expert[expert], call * expected.tokens_per_expert[expert]);
      ASSERT_EQ(load.waited_us.size(), 4u);
      for (const double us : load.waited_us) EXPECT_GT(us, 0);
    }
    const auto trace = exchange.last_trace();
    EXPECT_STREQ(trace.front().name, "begun");
    EXPECT_EQ(std::count_if(trace.begin(), trace.end(),
                            [](const auto& moment) { return moment.block == 0; }),
              9);
  }));
}

/// The prediction is exact to the byte.
TEST_P(FixedSize, MemoryIsPredicted) {
  const auto all = worlds(4);
  const std::vector<Tokens> tokens_of = kCase.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    const size_t empty = arena_of(world).used();
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    const Expected expected = expected_on(kCase.shape, tokens_of, world.rank());
    const auto rows = static_cast<uint32_t>(expected.rows.size());
    const auto memory = memory_of(exchange, kCase.tokens[world.rank()], rows);
    EXPECT_EQ(arena_of(world).used() - empty, memory.arena_bytes);
    const Received received = exchange.dispatch(tokens.input());
    exchange.wait();
    EXPECT_EQ(arena_of(world).used() - empty, memory.arena_bytes + memory.kept_bytes);
    EXPECT_EQ(arena_of(world).peak() - empty, memory.arena_bytes + memory.peak_bytes);
  }));
}

INSTANTIATE_ON_DEVICES(FixedSize);

}  // namespace
}  // namespace tokenyard::test
