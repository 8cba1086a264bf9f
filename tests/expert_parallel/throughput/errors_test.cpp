/// Errors are named, and alike on every rank if the ranks together can know them.
#include <fmt/format.h>

#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class Errors : public OnDevice {
 protected:
  static constexpr uint32_t kRanks = 3;
  const ExchangeCase case_{.shape = {.ranks = kRanks, .experts = 12, .hidden = 16, .topk = 3},
                           .tokens = {8, 9, 10}};

  /// Dispatches `all` on every rank; returns what each rank threw.
  Outcomes dispatch(const std::vector<Tokens>& all) {
    const auto ranks = worlds(kRanks);
    return run_ranks(ranks, [&](World& world) {
      ExpertParallel exchange(world, case_.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      exchange.dispatch(tokens.input());
    });
  }
};

TEST_P(Errors, AnExpertThatDoesNotExistIsNamedOnAllRanks) {
  for (const int64_t bad : {int64_t{12}, int64_t{-2}, int64_t{1} << 40}) {
    std::vector<Tokens> all = case_.draw();
    all[1].ids[5 * 3 + 2] = bad;
    for (const auto& outcome : dispatch(all)) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, "topk_idx");
      EXPECT_EQ(error.expected, "experts 0 to 11, or -1");
      EXPECT_EQ(error.seen, fmt::format("expert {} in token 5", bad));
      EXPECT_EQ(error.rank, 1u);
    }
  }
}

TEST_P(Errors, AnExpertTwiceInATokenIsNamedOnAllRanks) {
  std::vector<Tokens> all = case_.draw();
  all[2].ids[9 * 3 + 0] = 7;
  all[2].ids[9 * 3 + 2] = 7;
  for (const auto& outcome : dispatch(all)) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "topk_idx");
    EXPECT_EQ(error.seen, "expert 7 twice in token 9");
    EXPECT_EQ(error.rank, 2u);
  }
}

/// -1 may occur in a token any number of times.
TEST_P(Errors, NoExpertTwiceIsFine) {
  std::vector<Tokens> all = case_.draw();
  for (uint32_t choice = 0; choice < 3; ++choice) all[0].ids[choice] = -1;
  expect_none_failed(dispatch(all));
}

TEST_P(Errors, OfSeveralTheFirstRanksFirstTokenIsNamed) {
  std::vector<Tokens> all = case_.draw();
  for (const uint32_t rank : {1, 2})
    for (const uint32_t token : {3, 4, 7}) all[rank].ids[token * 3 + 1] = 99;
  for (const auto& outcome : dispatch(all)) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.rank, 1u);
    EXPECT_EQ(error.seen, "expert 99 in token 3");
  }
}

TEST_P(Errors, ARefusedCallLeavesTheObjectUsable) {
  const auto ranks = worlds(kRanks);
  const std::vector<Tokens> good = case_.draw();
  std::vector<Tokens> bad = good;
  bad[0].ids[0] = 1000;
  expect_none_failed(run_ranks(ranks, [&](World& world) {
    ExpertParallel exchange(world, case_.options());
    const TokensOnDevice right(accelerator_of(world), good[world.rank()], true);
    const TokensOnDevice wrong(accelerator_of(world), bad[world.rank()], true);
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(exchange.dispatch(wrong.input()), InvalidArgument);
      const Received received = exchange.dispatch(right.input());
      EXPECT_EQ(difference(exchange, received, expected_on(case_.shape, good, world.rank())), "");
    }
  }));
}

TEST_P(Errors, OptionsThatDifferAreNamedOnAllRanks) {
  const auto ranks = worlds(kRanks);
  const auto outcomes = run_ranks(ranks, [&](World& world) {
    ExpertParallelOptions options = case_.options();
    if (world.rank() == 2) options.hidden = 32;
    ExpertParallel exchange(world, options);
  });
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "hidden");
    EXPECT_EQ(error.expected, "16 as on rank 0");
    EXPECT_EQ(error.seen, "32");
    EXPECT_EQ(error.rank, 2u);
  }
}

TEST_P(Errors, OptionsThatCannotBeAreNamed) {
  const auto ranks = worlds(kRanks);
  const auto argument_of = [&](const ExpertParallelOptions& options) {
    const auto outcomes =
        run_ranks(ranks, [&](World& world) { ExpertParallel exchange(world, options); });
    for (const auto& outcome : outcomes)
      EXPECT_EQ(error_of<InvalidArgument>(outcome).argument,
                error_of<InvalidArgument>(outcomes[0]).argument);
    return error_of<InvalidArgument>(outcomes[0]).argument;
  };
  const ExpertParallelOptions good = case_.options();
  const auto with = [&](auto change) {
    ExpertParallelOptions options = good;
    change(options);
    return argument_of(options);
  };
  EXPECT_EQ(with([](auto& options) { options.experts = 0; }), "experts");
  EXPECT_EQ(with([](auto& options) { options.hidden = 12; }), "hidden");
  EXPECT_EQ(with([](auto& options) {
              options.experts = 300;
              options.topk = 257;
            }),
            "topk");
  EXPECT_EQ(with([](auto& options) { options.topk = 0; }), "topk");
  EXPECT_EQ(with([](auto& options) { options.topk = 13; }), "topk");
  EXPECT_EQ(with([](auto& options) { options.tokens_max = 0; }), "tokens_max");
  EXPECT_EQ(with([](auto& options) { options.tokens_max = 1u << 30; }), "tokens_max");
  EXPECT_EQ(with([](auto& options) { options.sms = 1u << 20; }), "sms");
}

TEST(Memory, OfSizesThatCannotBeIsRefusedBeforeAnythingIsMade) {
  const ExpertParallelOptions good{.experts = 8, .hidden = 64, .topk = 2, .tokens_max = 16};
  const auto argument_of = [](const ExpertParallelOptions& options, uint32_t ranks, uint32_t tokens,
                              uint32_t rows, const RowFormat& format = {}) -> std::string {
    try {
      ExpertParallel::memory(options, ranks, tokens, rows, format);
    } catch (const InvalidArgument& error) {
      return error.argument;
    }
    return "none";
  };
  EXPECT_EQ(argument_of(good, 2, 16, 32), "none");
  EXPECT_EQ(argument_of(good, 0, 16, 32), "ranks");
  EXPECT_EQ(argument_of(good, 2, 17, 32), "tokens");
  EXPECT_EQ(argument_of(good, 2, 16, 33), "rows_received");
  EXPECT_EQ(argument_of(good, 2, 16, 32, {.type = DataType::float64}), "type");
  EXPECT_EQ(argument_of(good, 2, 16, 32, {.type = DataType::uint8, .row_bytes = 8}), "row_bytes");
  ExpertParallelOptions wrong = good;
  wrong.hidden = 12;
  EXPECT_EQ(argument_of(wrong, 2, 16, 32), "hidden");
  const auto few = ExpertParallel::memory(good, 2, 16, 4),
             many = ExpertParallel::memory(good, 2, 16, 32);
  EXPECT_EQ(few.arena_bytes, many.arena_bytes);
  EXPECT_EQ(few.peak_bytes, many.peak_bytes);
  EXPECT_LT(few.kept_bytes, many.kept_bytes);
  EXPECT_LT(many.kept_by_route_bytes, many.kept_bytes);
  EXPECT_LE(many.kept_bytes, many.peak_bytes);
}

TEST_P(Errors, ArgumentsAreCheckedBeforeAnythingIsLaunched) {
  const auto ranks = worlds(1);
  const ExchangeCase alone{.shape = {.ranks = 1, .experts = 4, .hidden = 16, .topk = 2},
                           .tokens = {4}};
  const std::vector<Tokens> all = alone.draw();
  expect_none_failed(run_ranks(ranks, [&](World& world) {
    ExpertParallel exchange(world, alone.options());
    ExpertParallel another(world, alone.options());
    const TokensOnDevice tokens(accelerator_of(world), all[0], true);
    const auto argument_of = [&](auto call) {
      try {
        call();
      } catch (const InvalidArgument& error) {
        return error.argument;
      }
      return std::string("none");
    };
    const auto with = [&](auto change) {
      return argument_of([&] {
        DispatchInput input = tokens.input();
        change(input);
        exchange.dispatch(input);
      });
    };
    EXPECT_EQ(with([](auto& input) { input.x.shape[0] = 1000; }), "tokens");
    EXPECT_EQ(with([](auto& input) { input.x.data = nullptr; }), "x");
    EXPECT_EQ(with([](auto& input) { input.x.data = input.x.template as<char>() + 2; }), "x");
    EXPECT_EQ(with([](auto& input) { input.topk_idx = {}; }), "topk_idx");
    EXPECT_EQ(with([](auto& input) {
                input.topk_weights.data = reinterpret_cast<const float*>(uintptr_t{2});
              }),
              "topk_weights");
    const Received received = exchange.dispatch(tokens.input());
    DeviceArray<uint16_t> out(accelerator_of(world), 4 * 16);
    EXPECT_EQ(argument_of([&] {
                another.combine({.y = received.x}, *received.route,
                                {.x = out.bf16_rows(exchange.options().hidden)});
              }),
              "route");
    const TensorView home = out.bf16_rows(16);
    EXPECT_EQ(argument_of([&] { exchange.combine({}, *received.route, {.x = home}); }), "y");
    EXPECT_EQ(argument_of([&] { exchange.combine({.y = received.x}, *received.route, {}); }),
              "out");
    EXPECT_EQ(argument_of([&] {
                exchange.combine({.y = received.x, .topk_weights = received.topk_weights},
                                 *received.route, {.x = home});
              }),
              "out_topk_weights");
    // Rows are read while sums are written.
    DeviceArray<uint16_t> both(accelerator_of(world), 5 * 16);
    EXPECT_EQ(argument_of([&] {
                exchange.combine({.y = {both.data(), DataType::bfloat16, {4, 16}}}, *received.route,
                                 {.x = {both.data() + 16, DataType::bfloat16, {4, 16}}});
              }),
              "out");
    // None of these calls has had an effect.
    exchange.combine({.y = received.x}, *received.route,
                     {.x = out.bf16_rows(exchange.options().hidden)});
    exchange.wait();
    EXPECT_TRUE(out.read() == all[0].x);
  }));
}

/// One rank combines while the others dispatch.
TEST_P(Errors, DifferentCallsAreNamedOnAllRanks) {
  const auto ranks = worlds(kRanks);
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one kernel";
  const std::vector<Tokens> all = case_.draw();
  const auto outcomes = run_ranks(ranks, [&](World& world) {
    ExpertParallel exchange(world, case_.options());
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    if (world.rank() != 1) {
      try {
        exchange.dispatch(tokens.input());
      } catch (const InvalidArgument& error) {
        const std::vector<FailedRank> failed = exchange.failed_ranks();
        EXPECT_EQ(failed.size(), 1u);
        EXPECT_EQ(failed.at(0).rank, 1u);
        EXPECT_EQ(failed.at(0).why, FailedRank::Why::differs);
        // Kinds of calls, as numbers.
        EXPECT_EQ(failed.at(0).expected, static_cast<uint64_t>(throughput::CallKind::dispatch));
        EXPECT_EQ(failed.at(0).seen, static_cast<uint64_t>(throughput::CallKind::combine));
        EXPECT_EQ(failed.at(0).text, error.what());
        throw;
      }
      return;
    }
    DeviceArray<uint16_t> out(accelerator_of(world), all[1].x.size());
    exchange.combine({.y = received.x}, *received.route,
                     {.x = out.bf16_rows(exchange.options().hidden)});
    exchange.wait();
  });
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "call");
    EXPECT_EQ(error.expected, "dispatch as on rank 0");
    EXPECT_EQ(error.seen, "combine");
    EXPECT_EQ(error.rank, 1u);
  }
}

/// One rank sends other rows, another makes another call. Whichever of the two each rank would have
/// refused for alone, all name the same.
TEST_P(Errors, OfOtherRowsAndAnotherCallAllRanksNameTheSame) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one kernel";
  const std::vector<Tokens> all = case_.draw();
  for (const bool first_dispatches : {true, false}) {
    const auto outcomes = run_ranks(worlds(kRanks), [&](World& world) {
      ExpertParallel exchange(world, case_.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const Received received = exchange.dispatch(tokens.input());
      const bool dispatches = (world.rank() != 2) == first_dispatches;
      const bool of_other_type = world.rank() == 1;
      const DataType type = of_other_type ? DataType::float32 : DataType::bfloat16;
      const size_t rows = std::max<size_t>(received.rows, all[world.rank()].count);
      const DeviceArray<float> from(accelerator_of(world), rows * 16),
          to(accelerator_of(world), rows * 16);
      if (dispatches) {
        DispatchInput input = tokens.input();
        input.x = from.view(type, {all[world.rank()].count, 16});
        exchange.dispatch(input);
      } else {
        exchange.combine({.y = from.view(type, {received.rows, 16})}, *received.route,
                         {.x = to.view(type, {all[world.rank()].count, 16})});
      }
      exchange.wait();
    });
    for (const auto& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      // A dispatch refuses rows with its counts, which a combine does not have.
      EXPECT_EQ(error.rank, first_dispatches ? 2u : 1u);
    }
  }
}

/// Ranks without rows and tokens cannot know whether weights come back, so they agree with either
/// of two ranks that differ. They must hear of it all the same, wherever they are.
TEST_P(Errors, WeightsOnSomeRanksAreNamedOnAllRanks) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one kernel";
  constexpr uint32_t kSome = 5;
  for (uint32_t idle = 0; idle < kSome; ++idle) {
    SCOPED_TRACE(fmt::format("rank {} has nothing", idle));
    ExchangeCase some{.shape = {.ranks = kSome, .experts = 2 * kSome, .hidden = 16, .topk = 1},
                      .tokens = std::vector<uint32_t>(kSome, 3)};
    some.tokens[idle] = 0;
    std::vector<Tokens> all = some.draw();
    for (uint32_t rank = 0; rank < kSome; ++rank)
      for (int64_t& id : all[rank].ids) id = 2 * rank;  // At home.
    const uint32_t first = idle == 0 ? 1 : 0, odd = idle == kSome - 1 ? kSome - 2 : kSome - 1;
    const auto outcomes = run_ranks(worlds(kSome), [&](World& world) {
      ExpertParallel exchange(world, some.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const Received received = exchange.dispatch(tokens.input());
      const DeviceArray<uint16_t> out(accelerator_of(world), size_t{received.rows} * 16);
      const DeviceArray<float> out_weights(accelerator_of(world), received.rows);
      CombineInput input{.y = received.x};
      CombineOutput output{.x = out.bf16_rows(16)};
      if (world.rank() == odd) {
        input.topk_weights = received.topk_weights;
        output.topk_weights = out_weights.view({received.rows, 1});
      }
      exchange.combine(input, *received.route, output);
      exchange.wait();
    });
    for (const auto& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, "call");
      EXPECT_EQ(error.expected, fmt::format("combine as on rank {}", first));
      EXPECT_EQ(error.seen, "combine with weights");
      EXPECT_EQ(error.rank, odd);
    }
  }
}

/// Bounds travel with addresses: what is too small, or of another type, is refused.
TEST_P(Errors, ArraysOfAnotherTypeShapeOrLayoutAreRefused) {
  const ExchangeCase alone{.shape = {.ranks = 1, .experts = 4, .hidden = 16, .topk = 2},
                           .tokens = {4}};
  const std::vector<Tokens> all = alone.draw();
  expect_none_failed(run_ranks(worlds(1), [&](World& world) {
    ExpertParallel exchange(world, alone.options());
    const TokensOnDevice tokens(accelerator_of(world), all[0], true);
    const Received received = exchange.dispatch(tokens.input());
    DeviceArray<uint16_t> out(accelerator_of(world), 4 * 16);
    DeviceArray<float> weights(accelerator_of(world), 4 * 2);
    out.poison();
    const std::vector<uint16_t> poisoned = out.read();
    const auto refusal_of = [](auto call) -> std::string {
      try {
        call();
      } catch (const InvalidArgument& error) {
        return fmt::format("{}: {}, not {}", error.argument, error.expected, error.seen);
      }
      return "accepted";
    };
    const auto combine = [&](const CombineInput& input, const CombineOutput& output) {
      return refusal_of([&] { exchange.combine(input, *received.route, output); });
    };
    const CombineInput rows{.y = received.x};
    EXPECT_EQ(combine(rows, {.x = out.view(DataType::float16, {4, 16})}),
              "out: [4, 16] of bfloat16, not [4, 16] of float16");
    EXPECT_EQ(combine(rows, {.x = out.view(DataType::bfloat16, {3, 16})}),
              "out: [4, 16] of bfloat16, not [3, 16] of bfloat16");
    EXPECT_EQ(combine(rows, {.x = out.view(DataType::bfloat16, {64})}),
              "out: [4, 16] of bfloat16, not [64] of bfloat16");
    EXPECT_EQ(combine(rows, {.x = out.bf16_rows(16).with_strides({1, 4})}),
              "out: contiguous elements, not strides [1, 4]");
    EXPECT_EQ(combine(rows, {.x = out.bf16_rows(16), .topk_weights = weights.view({2, 4})}),
              "out_topk_weights: [4, 2] of float32, not [2, 4] of float32");
    EXPECT_EQ(combine({.y = out.view(DataType::float32, {4, 16})}, {.x = out.bf16_rows(16)}),
              "out: [4, 16] of float32, not [4, 16] of bfloat16");
    EXPECT_EQ(combine({.y = received.x, .biases = {out.bf16_rows(8)}}, {.x = out.bf16_rows(16)}),
              "biases: [4, 16] of bfloat16, not [8, 8] of bfloat16");
    EXPECT_EQ(combine({.y = out.view(DataType::float8_e4m3fn, {4, 16})}, {}),
              "y: bfloat16, float16 or float32, which can be summed, not float8_e4m3fn");
    EXPECT_EQ(out.read(), poisoned);

    const auto dispatch = [&](auto change) {
      DispatchInput input = tokens.input();
      change(input);
      return refusal_of([&] { exchange.dispatch(input); });
    };
    EXPECT_EQ(dispatch([&](auto& input) {
                input.topk_idx = weights.view({4, 2});
              }),
              "topk_idx: [4, 2] of int64 or int32, not [4, 2] of float32");
    EXPECT_EQ(dispatch([&](auto& input) { input.topk_idx.shape[0] = 3; }),
              "topk_idx: [4, 2] of int64 or int32, not [3, 2] of int64");
    EXPECT_EQ(dispatch([&](auto& input) { input.x.shape[1] = 8; }),
              "x: [4, 16] of bfloat16, not [4, 8] of bfloat16");
    EXPECT_EQ(dispatch([&](auto& input) { input.x.type = DataType::float64; }),
              "type: bfloat16, float16, float32, float8_e4m3fn or uint8, not float64");
    EXPECT_EQ(dispatch([&](auto& input) {
                input.scales = weights.view({2, 4});
              }),
              "scales: [4, 4] of float32 or int32 or uint32 or uint8, not [2, 4] of float32");
    EXPECT_EQ(dispatch([](auto&) {}), "accepted");
    exchange.wait();
  }));
}

TEST_P(Errors, DifferentRoutesAreNamedOnAllRanks) {
  const auto ranks = worlds(kRanks);
  const std::vector<Tokens> all = case_.draw();
  const auto outcomes = run_ranks(ranks, [&](World& world) {
    ExpertParallel exchange(world, case_.options());
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const Received first = exchange.dispatch(tokens.input());
    const Received second = exchange.dispatch(tokens.input());
    exchange.dispatch({.x = tokens.input().x}, world.rank() == 0 ? *first.route : *second.route);
    exchange.wait();
  });
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "route");
    EXPECT_EQ(error.rank, 1u);
  }
}

INSTANTIATE_ON_DEVICES(Errors);

}  // namespace
}  // namespace tokenyard::test
