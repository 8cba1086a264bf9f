/// Low-latency dispatch and combine between hosts, and by put within one, checked bit for bit.
#include <chrono>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/host/mirrors.hpp"
#include "expert_parallel/low_latency/host/put_peers.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/world_access.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::test {
namespace {

using HostOf = std::vector<uint32_t>;

class LowLatencyByPut : public testing::Test {
 protected:
  static std::vector<std::unique_ptr<World>> worlds(
      const HostOf& host_of, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    return worlds_on<simt::HostAccelerator>(host_of, timeout, [] {});
  }
  template <class Accelerator_, class... Arguments>
  static std::vector<std::unique_ptr<World>> worlds_on(const HostOf& host_of,
                                                       std::chrono::nanoseconds timeout,
                                                       Arguments... arguments) {
    const WorldOptions options{.timeout = timeout, .arena_bytes = size_t{64} << 20};
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (size_t rank = 0; rank < host_of.size(); ++rank)
      accelerators.push_back(std::make_shared<Accelerator_>(arguments...));
    return join_all(accelerators, std::make_shared<InProcessFabric>(host_of), options,
                    {.run = cards_on_threads(), .within_hosts = true});
  }
  /// A few batches, so that landings and stages are used again.
  static void check(const HostOf& host_of, const LowLatencyCase& of, uint32_t batches = 3) {
    expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
      LowLatency exchange(world, of.options());
      LowLatencyCase changing = of;
      for (uint32_t batch = 0; batch < batches; ++batch, ++changing.seed)
        EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
      for (const FailedRank& failed : exchange.failed_ranks()) ADD_FAILURE() << failed.text;
      exchange.close();
    }));
  }
  /// Returns the bytes of the largest block that an arena has room for.
  static size_t largest_room(Arena& arena) {
    constexpr size_t page = 4096;
    size_t fits = 0;
    for (size_t step = size_t{1} << 25; step >= page; step /= 2) {
      try {
        (void)arena.allocate(fits + step, Stream{});
        fits += step;
      } catch (const InvalidArgument&) {
      }
    }
    return fits;
  }
  static LowLatencyCase some_tokens(const HostOf& host_of) {
    const auto ranks = static_cast<uint32_t>(host_of.size());
    LowLatencyCase of{.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 64, .topk = 4},
                      .tokens = {},
                      .picking = {.none = 0.1}};
    for (uint32_t rank = 0; rank < ranks; ++rank) of.tokens.push_back(3 + 5 * rank % 7);
    return of;
  }
};

/// Also of more peers than a call has blocks, which then stand for several each.
TEST_F(LowLatencyByPut, EveryNumberOfHostsAndRanks) {
  for (const HostOf& host_of : {HostOf{0, 1},
                                {0, 0, 1, 1},
                                {0, 1, 1},
                                {0, 1, 2},
                                {0, 1, 0, 1, 1},
                                {0, 0, 1, 1, 2, 2},
                                {0, 1, 1, 2, 2, 2},
                                {0, 1, 2, 3},
                                {0, 1, 2, 3, 4, 5, 6, 6}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(host_of, " ")));
    check(host_of, some_tokens(host_of));
  }
}

/// Takes minutes.
TEST_F(LowLatencyByPut, DISABLED_ManyHosts) {
  HostOf host_of;
  for (uint32_t rank = 0; rank < 136; ++rank) host_of.push_back(rank / 8);
  LowLatencyCase of = some_tokens(host_of);
  of.shape.experts = 136;
  of.shape.hidden = 32;
  check(host_of, of, 2);
}

TEST_F(LowLatencyByPut, EveryFormatOfRows) {
  const HostOf host_of{0, 0, 1};
  for (const LowLatencyRows rows : {LowLatencyRows::bf16, LowLatencyRows::fp8,
                                    LowLatencyRows::fp8_rounded, LowLatencyRows::fp8_ue8m0})
    for (const uint32_t hidden : {32, 544, 2880}) {
      SCOPED_TRACE(fmt::format("{} {}", static_cast<int>(rows), hidden));
      LowLatencyCase of = some_tokens(host_of);
      of.shape.hidden = hidden;
      of.rows = rows;
      of.given_fp8 = rows != LowLatencyRows::bf16 && hidden == 544;
      check(host_of, of, 2);
    }
}

TEST_F(LowLatencyByPut, SumsAsLogarithms) {
  const HostOf host_of{0, 1, 1};
  for (const uint32_t hidden : {32, 2880})
    for (const bool hooks : {false, true}) {
      LowLatencyCase of = some_tokens(host_of);
      of.shape.hidden = hidden;
      of.hooks = hooks;
      of.logfmt = true;
      check(host_of, of);
    }
}

/// All ranks, none, or some give them to the dispatch. Nine choices take two ids words.
TEST_F(LowLatencyByPut, WeightsTravelWithTheDispatchOrTheCombine) {
  const HostOf host_of{0, 0, 1, 2};
  for (const uint32_t early : {0b1111u, 0b0101u, 0b1000u})
    for (const uint32_t topk : {3u, 9u})
      for (const bool hooks : {false, true}) {
        LowLatencyCase of = some_tokens(host_of);
        of.shape.experts = 36;
        of.shape.topk = topk;
        of.tokens = {7, 0, 40, 1};
        of.early_weights = early;
        of.hooks = hooks;
        check(host_of, of, 4);
      }
}

TEST_F(LowLatencyByPut, TwoBatchesOverlap) {
  const HostOf host_of{0, 0, 1};
  const LowLatencyCase of = some_tokens(host_of);
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    LowLatency exchange(world, of.options());
    Survivor all_live(exchange, std::nullopt);
    LowLatencyCase changing = of;
    for (uint32_t turn = 0; turn < 4; ++turn) {
      changing.early_weights = turn % 2 == 0 ? 0 : 0b111;
      SurvivorBatch one(all_live, changing, turn == 3);
      ++changing.seed;
      SurvivorBatch other(all_live, changing, false);
      ++changing.seed;
      overlap(one, other);
    }
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

/// Ranks of one host, too, if the object is told so.
TEST_F(LowLatencyByPut, WithinAHost) {
  for (const HostOf& host_of : {HostOf{0, 0, 0}, {0, 0, 1}}) {
    LowLatencyCase of = some_tokens(host_of);
    of.paths = LowLatencyPaths::put;
    check(host_of, of);
    expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
      LowLatency exchange(world, of.options());
      for (uint32_t rank = 0; rank < world.size(); ++rank)
        EXPECT_EQ(exchange.paths()[rank],
                  rank == world.rank() ? LowLatencyPath::self : LowLatencyPath::put);
      exchange.close();
    }));
  }
}

TEST_F(LowLatencyByPut, ThePathsAreThoseOfTheTopology) {
  const HostOf host_of{0, 0, 1};
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    LowLatency exchange(world, some_tokens(host_of).options());
    for (uint32_t rank = 0; rank < world.size(); ++rank) {
      LowLatencyPath path = LowLatencyPath::put;
      if (host_of[rank] == host_of[world.rank()]) path = LowLatencyPath::load_store;
      if (rank == world.rank()) path = LowLatencyPath::self;
      EXPECT_EQ(exchange.paths()[rank], path);
    }
    exchange.close();
  }));
}

TEST_F(LowLatencyByPut, PutsWithinAHostNeedANetworkThere) {
  const auto alone = World::in_process(2, "host", {.timeout = std::chrono::seconds(60)});
  for (const auto& outcome : run_ranks(alone, [&](World& world) {
         LowLatencyCase of = some_tokens({0, 0});
         of.paths = LowLatencyPaths::put;
         LowLatency exchange(world, of.options());
       }))
    EXPECT_NE(std::string(error_of<Unsupported>(outcome).what()).find("host_name"),
              std::string::npos);
}

/// A host whose ranks do not call is masked, the others' results are exact, and all go on together
/// once they have agreed on an epoch.
TEST_F(LowLatencyByPut, AHostThatStaysAwayIsMaskedAndComesBack) {
  const HostOf host_of{0, 0, 1, 1};
  const LowLatencyCase of = some_tokens(host_of);
  const std::set<uint32_t> away{2, 3};
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    LowLatency exchange(world, of.options());
    LowLatencyCase changing = of;
    EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
    ++changing.seed;
    if (!away.contains(world.rank())) {
      for (uint32_t rank : away) exchange.update_mask(rank, true);
      const std::vector<Tokens> all = changing.draw();
      const LowLatencyTokens tokens(world, of, all[world.rank()]);
      const LowLatencyReceived received = exchange.dispatch(tokens.input());
      EXPECT_EQ(difference_after_dispatch(exchange, changing, all, received, away), "");
      const TensorView y = exchange.combine_buffer(received.handle);
      run_experts(exchange, changing, all, y, away);
      const CombineOnDevice combined(exchange, changing, all[world.rank()]);
      exchange.combine(combined.what(y, tokens), received.handle);
      EXPECT_EQ(difference_after_combine(exchange, changing, all[world.rank()], combined, away),
                "");
    }
    exchange.wait();
    world.barrier("streams are drained");
    exchange.restart(100);
    world.barrier("restarted");
    for (uint32_t batch = 0; batch < 3; ++batch) {
      ++changing.seed;
      EXPECT_EQ(difference_after_batch(exchange, changing, changing.draw()), "");
    }
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

/// The ranks of a host are gone; the others go on without it, then fresh ranks take its slots,
/// again and again: memory of messages is given back.
TEST_F(LowLatencyByPut, FreshRanksOfAHostAreAdmitted) {
  const HostOf host_of{0, 0, 1, 1, 2};
  const std::set<uint32_t> gone{2, 3};
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    const LowLatencyCase of = some_tokens(host_of);
    auto exchange = std::make_unique<LowLatency>(world, of.options());
    LowLatencyCase changing = of;
    const auto check_batches = [&](uint32_t batches, const std::set<uint32_t>& without) {
      for (; batches > 0; --batches, ++changing.seed)
        EXPECT_EQ(difference_after_batch(*exchange, changing, changing.draw(), without), "");
    };
    std::vector<size_t> rooms;
    for (uint32_t turn = 0; turn < 6; ++turn) {
      check_batches(3, {});
      if (gone.contains(world.rank())) {
        exchange.reset();
        world.barrier("they are gone");
        changing.seed += 2;
        world.barrier("the others have gone on");
        exchange = std::make_unique<LowLatency>(world, of.options());
      } else {
        world.barrier("they are gone");
        exchange->evict({2, 3});
        check_batches(2, gone);
        world.barrier("the others have gone on");
        EXPECT_EQ(exchange->admit(), std::vector(gone.begin(), gone.end()));
        rooms.push_back(largest_room(arena_of(world)));
      }
      EXPECT_TRUE(exchange->failed_ranks().empty());
    }
    check_batches(3, {});
    // New memory takes the place of that of before, so two places are used in turn.
    for (size_t turn = 2; turn < rooms.size(); ++turn) EXPECT_EQ(rooms[turn], rooms[turn - 2]);
    exchange->close();
  }));
}

/// A host that falls silent: each rank masks both of its ranks at the deadline.
TEST_F(LowLatencyByPut, ASilentHostIsMaskedAtTheDeadline) {
  const HostOf host_of{0, 0, 1, 1};
  LowLatencyCase of = some_tokens(host_of);
  const std::set<uint32_t> silent{2, 3};
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    LowLatency exchange(world, of.options());
    if (!silent.contains(world.rank())) {
      const std::vector<Tokens> all = of.draw();
      const LowLatencyTokens tokens(world, of, all[world.rank()]);
      const LowLatencyReceived received =
          exchange.dispatch(tokens.input(), {.timeout = std::chrono::seconds(3)});
      EXPECT_EQ(difference_after_dispatch(exchange, of, all, received, silent), "");
      std::set<uint32_t> masked;
      for (const FailedRank& failed : exchange.failed_ranks()) {
        masked.insert(failed.rank);
        EXPECT_EQ(failed.phase, "low latency dispatch: message");
      }
      EXPECT_EQ(masked, silent);
    }
    world.barrier("the others have masked it");
    exchange.close();
  }));
}

/// Rows in two formats are named on both sides, as within a host.
TEST_F(LowLatencyByPut, AnotherFormatIsNamed) {
  const HostOf host_of{0, 1};
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    LowLatencyCase of = some_tokens(host_of);
    LowLatency exchange(world, of.options());
    if (world.rank() == 1) of.rows = LowLatencyRows::bf16;
    const LowLatencyTokens tokens(world, of, of.draw()[world.rank()]);
    exchange.dispatch(tokens.input());
    try {
      exchange.wait();
      ADD_FAILURE() << "nothing was said of two formats";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "rows");
      EXPECT_EQ(error.rank, 1 - world.rank());
    }
    world.barrier("both have seen it");
    exchange.close();
  }));
}

/// The calls that graphs replay, recorded on the host.
TEST_F(LowLatencyByPut, TheSameMemoryServesReplayAfterReplay) {
  const auto recording = worlds_on<RecordingAccelerator>({0, 0, 1}, std::chrono::seconds(20));
  expect_none_failed(run_ranks(recording, [&](World& world) {
    check_replays(world, replayed_case(3, true), [&](Stream, const std::function<void()>& body) {
      return recording_accelerator(world).record(body);
    });
  }));
}

TEST_F(LowLatencyByPut, RowsAndWaitsAreMeasuredForEveryRank) {
  const HostOf host_of{0, 0, 1};
  const LowLatencyCase of = some_tokens(host_of);
  expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
    LowLatency exchange(world, of.options());
    const DeviceArray<uint64_t> waited(accelerator_of(world), std::vector<uint64_t>(3));
    const std::vector<Tokens> all = of.draw();
    const LowLatencyTokens tokens(world, of, all[world.rank()]);
    const std::vector<int32_t> counts = expected_batch(of.shape, all, world.rank()).counts;
    const DeviceArray<int32_t> rows(accelerator_of(world), std::vector<int32_t>(counts.size()));
    const LowLatencyReceived received = exchange.dispatch(
        tokens.input(),
        {.rows_total = rows.view({counts.size()}), .waited_cycles = waited.view({3})});
    EXPECT_EQ(difference_after_dispatch(exchange, of, all, received), "");
    EXPECT_EQ(rows.read(), counts);
    for (const uint64_t cycles : waited.read()) EXPECT_GT(cycles, 0u);
    world.barrier("measured");
    exchange.close();
  }));
}

TEST(Mirrors, OverlapOnlyWhereNothingIsWritten) {
  using low_latency::Mirrors;
  for (const bool bf16_rows : {true, false})
    for (const auto& [ranks, tokens_max] : {std::pair{2u, 1u}, {3u, 5u}, {16u, 128u}, {64u, 7u}}) {
      const LowLatencyOptions options{.experts = 2 * ranks,
                                      .hidden = 7168,
                                      .topk = 3,
                                      .tokens_max = tokens_max,
                                      .bf16_rows = bf16_rows};
      const low_latency::WindowLayout layout = low_latency::window_layout(options, ranks);
      for (const uint32_t self : {0u, ranks / 2, ranks - 1}) {
        const Mirrors mirrors = Mirrors::of(layout, self, ranks - 1);
        std::map<std::ptrdiff_t, std::ptrdiff_t> used;
        for (const std::ptrdiff_t begin : mirrors.begins) {
          EXPECT_EQ(begin % 128, 0);
          for (const auto& range : layout.written_by(self)) {
            const auto at = begin + static_cast<std::ptrdiff_t>(range.begin);
            EXPECT_TRUE(used.emplace(at, at + static_cast<std::ptrdiff_t>(range.bytes)).second);
          }
        }
        std::ptrdiff_t end = 0;
        for (const auto& [from, to] : used) {
          EXPECT_GE(from, end);
          end = to;
        }
        EXPECT_LE(static_cast<size_t>(end), mirrors.bytes);
        EXPECT_LE(mirrors.bytes, layout.bytes() * 11 / 5 + 4096);
      }
    }
}

}  // namespace
}  // namespace tokenyard::test
