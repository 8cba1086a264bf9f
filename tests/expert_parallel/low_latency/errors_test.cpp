/// Invalid calls are refused by name before anything is launched.
#include <gmock/gmock.h>

#include "base/refused.hpp"
#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

const LowLatencyCase kCase{.shape = {.ranks = 2, .experts = 4, .hidden = 64, .topk = 2},
                           .tokens = {3, 4}};

class LowLatencyErrors : public OnDevice {
 protected:
  void on_ranks(const std::function<void(LowLatency&)>& body) {
    const auto all = worlds(kCase.shape.ranks);
    expect_none_failed(run_ranks(all, [&](World& world) {
      LowLatency exchange(world, kCase.options());
      body(exchange);
      world.barrier("the end");
    }));
  }
};

TEST_P(LowLatencyErrors, OptionsThatCannotBe) {
  const auto all = worlds(1);
  const LowLatencyOptions good{.experts = 4, .hidden = 64, .topk = 2, .tokens_max = 8};
  const auto why = [&](auto LowLatencyOptions::*field, uint32_t value) {
    LowLatencyOptions options = good;
    options.*field = value;
    return refused([&] { LowLatency exchange(*all[0], options); });
  };
  EXPECT_EQ(why(&LowLatencyOptions::experts, 0), "experts");
  EXPECT_EQ(why(&LowLatencyOptions::experts, 5000), "experts");
  EXPECT_EQ(why(&LowLatencyOptions::hidden, 48), "hidden");
  EXPECT_EQ(why(&LowLatencyOptions::hidden, 0), "hidden");
  EXPECT_EQ(why(&LowLatencyOptions::topk, 17), "topk");
  EXPECT_EQ(why(&LowLatencyOptions::topk, 5), "topk");  // There are four experts.
  EXPECT_EQ(why(&LowLatencyOptions::tokens_max, 0), "tokens_max");
  EXPECT_EQ(why(&LowLatencyOptions::sms, 1), "sms");
  EXPECT_EQ(why(&LowLatencyOptions::sms, 1000), "sms");
  EXPECT_EQ(why(&LowLatencyOptions::topk, 2), "nothing");
}

/// Memory that does not fit the arena may exceed the machine's, so it must not be touched first.
TEST(LowLatencyMemory, AnArenaThatIsTooSmallIsRefusedBeforeBatchesAreMade) {
  const LowLatencyOptions options{.experts = 16, .hidden = 7168, .topk = 2, .tokens_max = 128};
  const LowLatency::Memory needed = LowLatency::memory(options, 1);
  const auto all = recording_worlds(1, {.arena_bytes = needed.arena_bytes / 2});
  const uint64_t before = recording_accelerator(*all[0]).allocated_bytes();
  EXPECT_EQ(refused([&] { LowLatency exchange(*all[0], options); }), "arena_bytes");
  EXPECT_LT(recording_accelerator(*all[0]).allocated_bytes() - before, needed.device_bytes / 100);
}

TEST_P(LowLatencyErrors, RanksThatDoNotAgree) {
  const auto all = worlds(3);
  const Outcomes outcomes = run_ranks(all, [&](World& world) {
    LowLatency exchange(
        world, {.experts = 6, .hidden = 64, .topk = 2, .tokens_max = world.rank() == 1 ? 16u : 8u});
  });
  for (const auto& outcome : outcomes) {
    const auto error = error_of<InvalidArgument>(outcome);
    EXPECT_EQ(error.argument, "tokens_max");
    EXPECT_EQ(error.rank, 1u);
    EXPECT_EQ(error.seen, "16");
  }
}

/// Each rank chooses its own number of blocks; all ranks refuse an invalid choice, and can
/// continue.
TEST_P(LowLatencyErrors, ARankWhoseBlocksCannotBe) {
  const auto all = worlds(3);
  for (const auto& [wrong, sms] : {std::pair{0u, 1u}, {2u, 1000u}}) {
    const auto refuse = [&](World& world) {
      LowLatencyOptions options{.experts = 6, .hidden = 64, .topk = 2, .tokens_max = 8};
      if (world.rank() == wrong) options.sms = sms;
      LowLatency exchange(world, options);
    };
    for (const auto& outcome : run_ranks(all, refuse)) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, "sms");
      EXPECT_EQ(error.rank, wrong);
      EXPECT_EQ(error.seen, std::to_string(sms));
      EXPECT_THAT(error.expected, testing::StartsWith("2 to "));
    }
  }
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(
        world, {.experts = 6, .hidden = 64, .topk = 2, .tokens_max = 8, .sms = 2 + world.rank()});
    exchange.close();
  }));
}

/// Exceeds a block's shared memory: by experts and tokens for any number of blocks, or by tokens
/// per block if there are few.
TEST_P(LowLatencyErrors, ShapesThatNoBlockCanHold) {
  const auto all = worlds(1);
  const auto why = [&](const LowLatencyOptions& options) {
    return run_ranks(all, [&](World& world) { LowLatency exchange(world, options); })[0];
  };
  const auto many = error_of<InvalidArgument>(
      why({.experts = 1024, .hidden = 32, .topk = 2, .tokens_max = 4096}));
  EXPECT_EQ(many.argument, "tokens_max");
  EXPECT_THAT(many.expected, testing::HasSubstr("232448 bytes"));
  EXPECT_THAT(many.seen, testing::StartsWith("4096, "));
  const LowLatencyOptions options{.experts = 16, .hidden = 32, .topk = 16, .tokens_max = 8192};
  LowLatencyOptions on_few = options;
  on_few.sms = 4;
  const auto few = error_of<InvalidArgument>(why(on_few));
  EXPECT_EQ(few.argument, "sms");
  EXPECT_THAT(few.expected, testing::StartsWith("at least 5, "));
  EXPECT_THAT(few.seen, testing::StartsWith("4, "));

  const LowLatencyCase of{.shape = {.ranks = 1, .experts = 16, .hidden = 32, .topk = 16},
                          .tokens = {3}};
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, options);
    const std::vector<Tokens> drawn = of.draw();
    const LowLatencyTokens tokens(world, of, drawn[0]);
    EXPECT_EQ(refused([&] { exchange.dispatch(tokens.input(), {.sms = 4}); }), "sms");
    try {
      exchange.dispatch(tokens.input(), {.sms = 3, .hook = true});
      ADD_FAILURE() << "so few blocks cannot hold their share";
    } catch (const RefusedBatch& error) {
      EXPECT_EQ(error.argument, "sms");
      exchange.receive(error.received.handle);  // It was sent without tokens.
    }
    for (const bool hooks : {false, true}) {
      LowLatencyCase fits = of;
      fits.hooks = hooks;
      fits.sms = hooks ? 4 : 5;  // All receive, or all but one.
      EXPECT_EQ(difference_after_batch(exchange, fits, drawn), "");
      fits.sms = 0;
      EXPECT_EQ(difference_after_batch(exchange, fits, drawn), "");
    }
    exchange.close();
  }));
}

TEST_P(LowLatencyErrors, ArgumentsThatCannotBe) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    const std::vector<Tokens> all = kCase.draw();
    const LowLatencyTokens tokens(world, kCase, all[world.rank()]);
    const auto why = [&](const std::function<void(LowLatencyInput&, LowLatencyCall&)>& change) {
      LowLatencyInput input = tokens.input();
      LowLatencyCall call;
      change(input, call);
      return refused([&] { exchange.dispatch(input, call); });
    };
    const uint32_t too_many = exchange.options().tokens_max + 1;
    EXPECT_EQ(why([&](auto& input, auto&) { input.x.shape[0] = too_many; }), "tokens");
    EXPECT_EQ(why([](auto& input, auto&) { input.x.data = nullptr; }), "x");
    EXPECT_EQ(why([](auto& input, auto&) { input.x.data = input.x.template as<char>() + 8; }), "x");
    EXPECT_EQ(why([](auto& input, auto&) { input.topk_idx = {}; }), "topk_idx");
    EXPECT_EQ(why([](auto& input, auto&) {
                input.rows = LowLatencyRows::bf16;
                input.scales = input.x;
              }),
              "scales");
    EXPECT_EQ(why([](auto&, auto& call) { call.active = {true}; }), "active");
    EXPECT_EQ(why([](auto&, auto& call) { call.active = {false, false}; }), "active");
    EXPECT_EQ(why([](auto&, auto& call) { call.sms = 1; }), "sms");
    const uintptr_t odd = reinterpret_cast<uintptr_t>(tokens.input().x.data) + 2;
    const uint32_t experts = exchange.local_experts(), ranks = world.size();
    EXPECT_EQ(why([&](auto&, auto& call) {
                call.rows_total = {reinterpret_cast<int32_t*>(odd), {experts}};
              }),
              "rows_total");
    EXPECT_EQ(why([&](auto&, auto& call) {
                call.waited_cycles = {reinterpret_cast<uint64_t*>(odd), {ranks}};
              }),
              "waited_cycles");
    EXPECT_EQ(why([&](auto&, auto& call) {
                call.span_ns = {reinterpret_cast<uint64_t*>(odd), {2, 2}};
              }),
              "span_ns");
    EXPECT_EQ(why([](auto&, auto& call) { call.timeout = std::chrono::seconds(0); }), "timeout");
    // Both ranks made equally many calls, without tokens: the next batch is exact.
    EXPECT_EQ(difference_after_batch(exchange, kCase, all), "");
  });
}

/// Bounds travel with addresses: what is too small, or of another type, is refused.
TEST_P(LowLatencyErrors, ArraysOfAnotherTypeShapeOrLayoutAreRefused) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    const std::vector<Tokens> all = kCase.draw();
    const Tokens& mine = all[world.rank()];
    const LowLatencyTokens tokens(world, kCase, mine);
    const auto why = [&](const std::function<void(LowLatencyInput&, LowLatencyCall&)>& change) {
      LowLatencyInput input = tokens.input();
      LowLatencyCall call;
      change(input, call);
      return refused([&] { exchange.dispatch(input, call); });
    };
    EXPECT_EQ(why([](auto& input, auto&) { input.x.type = DataType::float16; }), "x");
    EXPECT_EQ(why([](auto& input, auto&) { input.x.shape[1] /= 2; }), "x");
    EXPECT_EQ(why([](auto& input, auto&) { input.x.strides = {1, 1}; }), "x");
    EXPECT_EQ(why([](auto& input, auto&) { input.topk_idx.type = DataType::float64; }), "topk_idx");
    EXPECT_EQ(why([](auto& input, auto&) { input.topk_idx.shape[0] -= 1; }), "topk_idx");
    const DeviceArray<uint64_t> memory(accelerator_of(world), 64);
    EXPECT_EQ(why([&](auto&, auto& call) { call.span_ns = memory.view({4}); }), "span_ns");
    EXPECT_EQ(why([&](auto&, auto& call) { call.waited_cycles = memory.view({1}); }),
              "waited_cycles");
    EXPECT_EQ(why([&](auto&, auto& call) { call.rows_total = memory.view({1}); }), "rows_total");
    EXPECT_EQ(refused([&] { exchange.write_mask(memory.view({1})); }), "out");
    EXPECT_EQ(
        refused([&] { exchange.write_mask(memory.view(DataType::int32, {world.size() - 1})); }),
        "out");

    const LowLatencyReceived received = exchange.dispatch(tokens.input());
    const TensorView y = exchange.combine_buffer(received.handle);
    run_experts(exchange, kCase, all, y);
    const CombineOnDevice combined(exchange, kCase, mine);
    const std::vector<uint16_t> before = combined.out.read();
    const auto refusal_of = [&](const std::function<void(LowLatencyCombine&)>& change) {
      LowLatencyCombine what = combined.what(y, tokens);
      change(what);
      return refused([&] { exchange.combine(what, received.handle); });
    };
    EXPECT_EQ(refusal_of([](auto& what) { what.out.type = DataType::float16; }), "out");
    EXPECT_EQ(refusal_of([](auto& what) { what.out.shape[0] -= 1; }), "out");
    EXPECT_EQ(refusal_of([](auto& what) { what.y.shape[1] -= 1; }), "y");
    EXPECT_EQ(refusal_of([](auto& what) { what.topk_weights = what.lost; }), "topk_weights");
    EXPECT_EQ(refusal_of([](auto& what) { what.lost.shape[0] += 1; }), "lost");
    EXPECT_EQ(combined.out.read(), before);
    exchange.combine(combined.what(y, tokens), received.handle);
    EXPECT_EQ(difference_after_combine(exchange, kCase, mine, combined), "");
  });
}

TEST_P(LowLatencyErrors, WeightsAreGivenOnce) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    LowLatencyCase early = kCase;
    early.early_weights = 0b11;
    const std::vector<Tokens> all = kCase.draw();
    const LowLatencyTokens at_dispatch(world, early, all[world.rank()]);
    const LowLatencyTokens at_combine(world, kCase, all[world.rank()]);
    const CombineOnDevice combined(exchange, kCase, all[world.rank()]);
    LowLatencyInput input = at_dispatch.input();
    input.topk_weights.data = input.topk_weights.as<char>() + 2;
    EXPECT_EQ(refused([&] { exchange.dispatch(input); }), "topk_weights");
    const auto why = [&](const LowLatencyTokens& dispatched, const LowLatencyTokens& wrong) {
      const LowLatencyReceived received = exchange.dispatch(dispatched.input());
      const TensorView y = exchange.combine_buffer(received.handle);
      run_experts(exchange, kCase, all, y);
      const std::string argument =
          refused([&] { exchange.combine(combined.what(y, wrong), received.handle); });
      exchange.combine(combined.what(y, dispatched), received.handle);
      EXPECT_EQ(difference_after_combine(exchange, kCase, all[world.rank()], combined), "");
      return argument;
    };
    EXPECT_EQ(why(at_dispatch, at_combine), "topk_weights");
    EXPECT_EQ(why(at_combine, at_dispatch), "topk_weights");
  });
}

TEST_P(LowLatencyErrors, ABatchTooMany) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    const std::vector<Tokens> all = kCase.draw();
    const LowLatencyTokens tokens(world, kCase, all[world.rank()]);
    const LowLatencyReceived first = exchange.dispatch(tokens.input());
    LowLatencyReceived second = exchange.dispatch(tokens.input());
    EXPECT_EQ(refused([&] { exchange.dispatch(tokens.input()); }), "handle");
    EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, first), "");
    // Dropping a batch makes room for another.
    second.handle.reset();
    const LowLatencyReceived third = exchange.dispatch(tokens.input());
    EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, third), "");
    EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, first), "");
  });
}

TEST_P(LowLatencyErrors, HooksAreCalledOnceAndInOrder) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    const std::vector<Tokens> all = kCase.draw();
    const LowLatencyTokens tokens(world, kCase, all[world.rank()]);
    const LowLatencyReceived first = exchange.dispatch(tokens.input(), {.hook = true});
    const CombineOnDevice combined(exchange, kCase, all[world.rank()]);
    const LowLatencyCombine what = combined.what(exchange.combine_buffer(first.handle), tokens);
    EXPECT_EQ(refused([&] { exchange.combine(what, first.handle); }), "handle");
    EXPECT_EQ(refused([&] { exchange.dispatch(tokens.input()); }), "hook");
    const LowLatencyReceived second = exchange.dispatch(tokens.input(), {.hook = true});
    EXPECT_EQ(refused([&] { exchange.receive(second.handle); }), "hook");
    EXPECT_EQ(refused([&] { exchange.clear_mask(); }), "hook");
    exchange.receive(first.handle);
    EXPECT_EQ(refused([&] { exchange.receive(first.handle); }), "handle");
    exchange.receive(second.handle);
    EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, first), "");
    EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, second), "");
    exchange.combine(what, first.handle);
    EXPECT_EQ(refused([&] { exchange.combine(what, first.handle); }), "handle");
  });
}

TEST_P(LowLatencyErrors, AnIdThatIsNoExpertIsNamedAndCountsAsNone) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    std::vector<Tokens> all = kCase.draw();
    std::vector<Tokens> wrong = all;
    all[1].ids[3] = -1;
    wrong[1].ids[3] = 77;
    const LowLatencyTokens tokens(world, kCase, wrong[world.rank()]);
    const LowLatencyReceived received = exchange.dispatch(tokens.input());
    if (world.rank() == 1) {
      try {
        exchange.wait();
        FAIL() << "nobody complained";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument, "topk_idx");
        EXPECT_EQ(error.seen, "expert 77 in token 1, choice 1, of dispatch 1");
      }
    }
    // Raised once; the batch is as if the id had been -1.
    EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, received), "");
  });
}

TEST_P(LowLatencyErrors, ManyIdsThatAreNoExpertsAreOneComplaintADispatch) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    std::vector<Tokens> all = kCase.draw();
    for (int64_t& id : all[1].ids) id = 77;
    const LowLatencyTokens tokens(world, kCase, all[world.rank()]);
    for (const uint32_t dispatch : {1, 2}) {
      exchange.dispatch(tokens.input());
      if (world.rank() == 1) {
        try {
          exchange.wait();
          ADD_FAILURE() << "nobody complained";
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.seen, testing::StartsWith("expert 77 in token 0, choice 0, "));
          EXPECT_THAT(error.seen, testing::EndsWith(fmt::format("of dispatch {}", dispatch)));
        }
      }
      exchange.wait();
    }
  });
}

TEST_P(LowLatencyErrors, ACancelledWorldSaysSo) {
  const auto all = worlds(kCase.shape.ranks);
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, kCase.options());
    if (world.rank() == 0) return;
    const LowLatencyTokens tokens(world, kCase, kCase.draw()[1]);
    world.cancel();
    EXPECT_THROW(exchange.dispatch(tokens.input()), Cancelled);
  }));
}

TEST_P(LowLatencyErrors, MemoryIsWhatItSays) {
  on_ranks([&](LowLatency& exchange) {
    World& world = exchange.world();
    const size_t before = arena_of(world).used();
    const LowLatencyOptions options{.experts = 8, .hidden = 128, .topk = 4, .tokens_max = 16};
    LowLatency other(world, options);
    const size_t taken = arena_of(world).used() - before;
    const uint64_t said = LowLatency::memory(options, world.size()).arena_bytes;
    EXPECT_GE(taken, said);
    EXPECT_LT(taken, said + 4096);
    EXPECT_EQ(LowLatency::memory(options, world.size()).combine_buffer_bytes, 8u * 16 * 128 * 2);
    other.close();
    await_all(accelerator_of(world));  // Memory is freed in stream order.
    EXPECT_EQ(arena_of(world).used(), before);
    EXPECT_EQ(refused([&] { other.check(); }), "exchange");
  });
}

/// A refused launch has no effect: the same call can be made again, but no later call before it.
/// Each rank's launches are refused, one of each kind.
TEST(LowLatencyLaunches, ThatAreRefusedHaveBegunNothing) {
  const WorldOptions options{.timeout = std::chrono::seconds(20), .arena_bytes = size_t{1} << 20};
  expect_none_failed(run_ranks(recording_worlds(kCase.shape.ranks, options), [](World& world) {
    LowLatency exchange(world, kCase.options());
    const std::vector<Tokens> all = kCase.draw();
    const LowLatencyTokens tokens(world, kCase, all[world.rank()]);
    const auto refused_once = [&](const std::function<void()>& call) {
      recording_accelerator(world).refuse_next_launch();
      EXPECT_EQ(refused(call), "launch");
    };
    for (const bool hook : {false, true}) {
      const LowLatencyCall call{.hook = hook};
      LowLatencyReceived batch;
      const auto dispatch = [&] { batch = exchange.dispatch(tokens.input(), call); };
      const auto receive = [&] { exchange.receive(batch.handle); };
      refused_once(dispatch);
      dispatch();
      const CombineOnDevice combined(exchange, kCase, all[world.rank()]);
      const TensorView y = exchange.combine_buffer(batch.handle);
      const auto combine = [&] { exchange.combine(combined.what(y, tokens), batch.handle, call); };
      if (hook) {
        refused_once(receive);
        EXPECT_EQ(refused(combine), "handle");
        receive();
      }
      EXPECT_EQ(difference_after_dispatch(exchange, kCase, all, batch), "");
      run_experts(exchange, kCase, all, y);
      refused_once(combine);
      EXPECT_EQ(refused(receive), "handle");
      combine();
      if (hook) {
        refused_once(receive);
        EXPECT_EQ(refused(combine), "handle");
        receive();
      }
      EXPECT_EQ(difference_after_combine(exchange, kCase, all[world.rank()], combined), "");
    }
    exchange.close();
  }));
}

/// The host, too, cannot reach a deadline beyond the range of its clocks.
TEST(LowLatencyLaunches, AreWaitedForHoweverLongTheirTimeout) {
  expect_none_failed(run_ranks(recording_worlds(1, {}), [](World& world) {
    LowLatencyCase of = kCase;
    of.shape.ranks = 1;
    of.tokens = {3};
    LowLatency exchange(world, of.options());
    const std::vector<Tokens> all = of.draw();
    const LowLatencyTokens tokens(world, of, all[0]);
    const LowLatencyReceived batch =
        exchange.dispatch(tokens.input(), {.timeout = std::chrono::nanoseconds::max()});
    EXPECT_EQ(difference_after_dispatch(exchange, of, all, batch), "");
    exchange.close();
  }));
}

INSTANTIATE_ON_DEVICES(LowLatencyErrors);

}  // namespace
}  // namespace tokenyard::test
