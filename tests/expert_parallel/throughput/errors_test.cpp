/// Errors are named, and alike on every rank if the ranks together can know them.
#include <fmt/format.h>

#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"

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
      const TokensOnDevice tokens(world.accelerator(), all[world.rank()], true);
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
    const TokensOnDevice right(world.accelerator(), good[world.rank()], true);
    const TokensOnDevice wrong(world.accelerator(), bad[world.rank()], true);
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

TEST_P(Errors, ArgumentsAreCheckedBeforeAnythingIsLaunched) {
  const auto ranks = worlds(1);
  const ExchangeCase alone{.shape = {.ranks = 1, .experts = 4, .hidden = 16, .topk = 2},
                           .tokens = {4}};
  const std::vector<Tokens> all = alone.draw();
  expect_none_failed(run_ranks(ranks, [&](World& world) {
    ExpertParallel exchange(world, alone.options());
    ExpertParallel another(world, alone.options());
    const TokensOnDevice tokens(world.accelerator(), all[0], true);
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
    EXPECT_EQ(with([](auto& input) { input.tokens = 1000; }), "tokens");
    EXPECT_EQ(with([](auto& input) { input.x = nullptr; }), "x");
    EXPECT_EQ(with([](auto& input) { input.x = static_cast<const char*>(input.x) + 2; }), "x");
    EXPECT_EQ(with([](auto& input) { input.topk_idx = nullptr; }), "topk_idx");
    EXPECT_EQ(with([](auto& input) {
                input.topk_weights = reinterpret_cast<const float*>(uintptr_t{2});
              }),
              "topk_weights");
    const Received received = exchange.dispatch(tokens.input());
    DeviceArray<uint16_t> out(world.accelerator(), 4 * 16);
    EXPECT_EQ(argument_of([&] { another.combine(received.x, *received.route, out.data()); }),
              "route");
    EXPECT_EQ(argument_of([&] { exchange.combine(nullptr, *received.route, out.data()); }), "y");
    EXPECT_EQ(argument_of([&] { exchange.combine(received.x, *received.route, nullptr); }), "out");
    EXPECT_EQ(argument_of([&] {
                exchange.combine(received.x, *received.route, out.data(), received.topk_weights);
              }),
              "out_weights");
    // Rows are read while sums are written.
    DeviceArray<uint16_t> both(world.accelerator(), 5 * 16);
    EXPECT_EQ(
        argument_of([&] { exchange.combine(both.data(), *received.route, both.data() + 16); }),
        "out");
    // None of these calls has had an effect.
    exchange.combine(received.x, *received.route, out.data());
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
    const TokensOnDevice tokens(world.accelerator(), all[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    if (world.rank() != 1) {
      exchange.dispatch(tokens.input());
      return;
    }
    DeviceArray<uint16_t> out(world.accelerator(), all[1].x.size());
    exchange.combine(received.x, *received.route, out.data());
    exchange.wait();
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const auto error = error_of<InvalidArgument>(outcomes[rank]);
    EXPECT_EQ(error.argument, "call");
    EXPECT_EQ(error.seen, rank == 1 ? "dispatch" : "combine");
    if (rank != 1) {
      EXPECT_EQ(error.rank, 1u);
    }
  }
}

TEST_P(Errors, DifferentRoutesAreNamedOnAllRanks) {
  const auto ranks = worlds(kRanks);
  const std::vector<Tokens> all = case_.draw();
  const auto outcomes = run_ranks(ranks, [&](World& world) {
    ExpertParallel exchange(world, case_.options());
    const TokensOnDevice tokens(world.accelerator(), all[world.rank()], true);
    const Received first = exchange.dispatch(tokens.input());
    const Received second = exchange.dispatch(tokens.input());
    exchange.dispatch(tokens.input().x, world.rank() == 0 ? *first.route : *second.route);
    exchange.wait();
  });
  for (const auto& outcome : outcomes)
    EXPECT_EQ(error_of<InvalidArgument>(outcome).argument, "route");
}

INSTANTIATE_ON_DEVICES(Errors);

}  // namespace
}  // namespace tokenyard::test
