/// Mistakes of one rank affect other ranks only where they concern them, and the next correct batch
/// is exact on all ranks.
#include <gmock/gmock.h>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/ranks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kWrong = 1;  ///< the rank that makes the mistake
const LowLatencyCase kCase{.shape = {.ranks = 3, .experts = 7, .hidden = 320, .topk = 3},
                           .tokens = {5, 6, 4}};

class LowLatencyMistakes : public OnDevice {
 protected:
  void on_ranks(const std::function<void(LowLatency&)>& body) {
    const auto all = worlds(kCase.shape.ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      LowLatency exchange(world, kCase.options());
      body(exchange);
      exchange.close();
    }));
  }
};

/// The errors that calls raise, until they raise no more.
class RaisedErrors {
 public:
  void collect(const std::function<void()>& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      errors.push_back(error);
    }
  }
  void collect_all(LowLatency& exchange) {
    for (size_t before = SIZE_MAX; before != errors.size();) {
      before = errors.size();
      collect([&] { exchange.wait(); });
    }
  }
  std::set<uint32_t> ranks() const {
    std::set<uint32_t> ranks;
    for (const InvalidArgument& error : errors) ranks.insert(error.rank.value_or(UINT32_MAX));
    return ranks;
  }
  std::vector<InvalidArgument> errors;
};

/// Of many ids that are no experts the first is named, once the whole batch has been exchanged.
TEST_P(LowLatencyMistakes, AnIdThatIsNoExpertIsNamedWhenItsBatchIsOver) {
  on_ranks([](LowLatency& exchange) {
    World& world = exchange.world();
    for (const bool hooks : {false, true}) {
      for (const uint32_t early : {0u, 0b111u}) {
        LowLatencyCase of = kCase;
        of.hooks = hooks;
        of.early_weights = early;
        std::vector<Tokens> all = of.draw();
        std::vector<int64_t>& ids = all[kWrong].ids;
        Tokens given = all[world.rank()];
        for (size_t choice = 10; choice < ids.size(); choice += 2) {
          ids[choice] = -1;
          if (world.rank() == kWrong) given.ids[choice] = of.shape.experts;
        }
        const Tokens& mine = all[world.rank()];
        const LowLatencyTokens tokens(world, of, given);
        const LowLatencyCall call{.hook = hooks};
        const CombineOnDevice combined(exchange, of, mine);
        const LowLatencyReceived received = exchange.dispatch(tokens.input(), call);
        if (hooks) exchange.receive(received.handle);
        const TensorView y = exchange.combine_buffer(received.handle);
        await_all(accelerator_of(world));
        run_experts(exchange, of, all, y);
        RaisedErrors raised;
        exchange.combine(combined.what(y, tokens), received.handle, call);
        if (hooks) raised.collect([&] { exchange.receive(received.handle); });
        raised.collect_all(exchange);
        ASSERT_EQ(raised.errors.size(), world.rank() == kWrong ? 1u : 0u);
        for (const InvalidArgument& error : raised.errors) {
          EXPECT_EQ(error.argument, "topk_idx");
          EXPECT_EQ(error.expected, "experts 0 to 6, or -1");
          EXPECT_THAT(error.seen,
                      testing::StartsWith("expert 7 in token 3, choice 1, of dispatch "));
        }
        EXPECT_EQ(difference_after_combine(exchange, of, mine, combined), "");
        EXPECT_EQ(difference_after_batch(exchange, of, of.draw()), "");
        EXPECT_THAT(exchange.failed_ranks(), testing::IsEmpty());
      }
    }
  });
}

/// A rank whose own tokens are refused still receives the others' tokens; the others are exact if
/// it combines them.
TEST_P(LowLatencyMistakes, ARefusedRankTakesPartWithoutTokens) {
  on_ranks([](LowLatency& exchange) {
    World& world = exchange.world();
    for (const bool hooks : {false, true}) {
      LowLatencyCase of = kCase;
      of.hooks = hooks;
      std::vector<Tokens> all = of.draw();
      const LowLatencyTokens given(world, of, all[world.rank()]);
      all[kWrong] = Tokens{};
      const LowLatencyTokens tokens(world, of, all[world.rank()]);
      const LowLatencyCall call{.hook = hooks};
      LowLatencyReceived received;
      if (world.rank() == kWrong) {
        LowLatencyInput input = given.input();
        input.x.shape[0] = exchange.options().tokens_max + 1;
        try {
          exchange.dispatch(input, call);
          FAIL() << "too many tokens were taken";
        } catch (const RefusedBatch& error) {
          EXPECT_EQ(error.argument, "tokens");
          received = error.received;
        }
      } else {
        received = exchange.dispatch(tokens.input(), call);
      }
      if (hooks) exchange.receive(received.handle);
      EXPECT_EQ(difference_after_dispatch(exchange, of, all, received), "");
      const TensorView y = exchange.combine_buffer(received.handle);
      run_experts(exchange, of, all, y);
      const CombineOnDevice combined(exchange, of, all[world.rank()]);
      exchange.combine(combined.what(y, tokens), received.handle, call);
      if (hooks) exchange.receive(received.handle);
      EXPECT_EQ(difference_after_combine(exchange, of, all[world.rank()], combined), "");
      EXPECT_EQ(difference_after_batch(exchange, of, of.draw()), "");
      EXPECT_THAT(exchange.failed_ranks(), testing::IsEmpty());
    }
  });
}

/// Makes a batch in which the wrong rank has `odd` formats; checks which rank the others name, and
/// what they miss.
void expect_named(LowLatency& exchange, const LowLatencyCase& odd, const char* argument) {
  World& world = exchange.world();
  const bool is_odd = world.rank() == kWrong;
  const LowLatencyCase& of = is_odd ? odd : kCase;
  const std::vector<Tokens> all = of.draw();
  const Tokens& mine = all[world.rank()];
  const LowLatencyTokens tokens(world, of, mine);
  const std::set<uint32_t> without = is_odd ? std::set<uint32_t>{0, 2} : std::set<uint32_t>{kWrong};
  const std::set<uint32_t> absent =
      odd.rows == kCase.rows ? std::set<uint32_t>{} : without;  // Else in the combine.
  RaisedErrors raised;
  const LowLatencyReceived received = exchange.dispatch(tokens.input());
  raised.collect_all(exchange);
  EXPECT_EQ(difference_after_dispatch(exchange, of, all, received, absent), "");
  const TensorView y = exchange.combine_buffer(received.handle);
  run_experts(exchange, of, all, y, absent);
  const CombineOnDevice combined(exchange, of, mine);
  exchange.combine(combined.what(y, tokens), received.handle);
  raised.collect_all(exchange);
  EXPECT_EQ(difference_after_combine(exchange, of, mine, combined, without), "");
  EXPECT_EQ(raised.ranks(), without);
  for (const InvalidArgument& error : raised.errors) EXPECT_EQ(error.argument, argument);
  for (const FailedRank& masked : exchange.failed_ranks()) {
    EXPECT_EQ(masked.why, FailedRank::Why::differs);
    EXPECT_THAT(masked.text, testing::HasSubstr(std::string("differs in ") + argument));
  }

  world.barrier("all have drained their streams");
  exchange.clear_mask();
  world.barrier("masks are cleared");
  EXPECT_EQ(difference_after_batch(exchange, kCase, kCase.draw()), "");
  EXPECT_THAT(exchange.failed_ranks(), testing::IsEmpty());
}

TEST_P(LowLatencyMistakes, ARankWhoseRowsDifferIsNamedAndNobodyTakesThem) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one shape";
  on_ranks([](LowLatency& exchange) {
    for (const LowLatencyRows rows :
         {LowLatencyRows::bf16, LowLatencyRows::fp8_rounded, LowLatencyRows::fp8_ue8m0}) {
      LowLatencyCase odd = kCase;
      odd.rows = rows;
      expect_named(exchange, odd, "rows");
    }
  });
}

TEST_P(LowLatencyMistakes, ARankWhoseSumsDifferIsNamedAndNobodyTakesThem) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one shape";
  on_ranks([](LowLatency& exchange) {
    LowLatencyCase odd = kCase;
    odd.logfmt = true;
    expect_named(exchange, odd, "use_logfmt");
  });
}

INSTANTIATE_ON_DEVICES(LowLatencyMistakes);

}  // namespace
}  // namespace tokenyard::test
