/// Exchanges go on with their job, and refuse what was captured before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/low_latency/host/session.hpp"
#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "expert_parallel/throughput/host/session.hpp"
#include "fabric/host/process_fabric.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "fabric/ranks.hpp"
#include "fabric/sessions.hpp"
#include "job/job_of_three.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/job.hpp"
#include "tokenyard/low_latency.hpp"
#include "world/parts.hpp"

namespace tokenyard::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using throughput::Session;

constexpr uint32_t kRanks = 3, kHidden = 64, kTopk = 2, kTokens = 8;
const ExpertParallelOptions kThroughput{
    .experts = 6, .hidden = kHidden, .topk = kTopk, .tokens_max = kTokens};
const LowLatencyOptions kLowLatency{
    .experts = 6, .hidden = kHidden, .topk = kTopk, .tokens_max = kTokens};

class GoingOn : public JobOfThree {
 protected:
  static std::unique_ptr<World> world_of(const std::shared_ptr<Job>& job) {
    return join_job(job,
                    {std::make_shared<RecordingAccelerator>(), std::make_shared<ProcessFabric>()},
                    {.timeout = 30s, .arena_bytes = 8 << 20});
  }
  /// Ranks 0 and 2 are on one host, rank 1 on another.
  static std::unique_ptr<World> world_between_hosts(const std::shared_ptr<Job>& job,
                                                    uint32_t rank) {
    return join_job(
        job,
        {std::make_shared<RecordingAccelerator>(),
         std::make_shared<ProcessFabric>(rank % 2 == 0 ? "a" : "b"), proxy_networks({})},
        {.timeout = 30s, .arena_bytes = 8 << 20});
  }
  template <class Make, class Exchange>
  void refuse_a_graph_of_before(Make make, Exchange run, bool between_hosts = false);
  template <class Make, class Exchange>
  void go_on_before_a_capture(Make make, Exchange run);
};

/// A rank's tokens, each for an expert of two ranks in turn.
struct Batch {
  Batch(World& world, const std::vector<uint32_t>& ranks)
      : accelerator(accelerator_of(world)),
        x(accelerator, kTokens * kHidden),
        ids(accelerator, kTokens * kTopk),
        weights(accelerator, kTokens * kTopk),
        out(accelerator, kTokens * kHidden) {
    constexpr uint16_t kOne = 0x3f80;  // Of bfloat16.
    std::fill_n(x.data(), kTokens * kHidden, kOne);
    std::fill_n(weights.data(), kTokens * kTopk, 0.5f);
    for (uint32_t token = 0; token < kTokens; ++token)
      for (uint32_t choice = 0; choice < kTopk; ++choice)
        ids.data()[token * kTopk + choice] =
            2 * ranks[(world.rank() + token + choice) % ranks.size()] + choice;
  }
  DispatchInput input() {
    return {.x = x.bf16_rows(kHidden), .topk_idx = ids.view({kTokens, kTopk})};
  }
  /// Every expert returns its rows as they are.
  void exchange_with(ExpertParallel& exchange, uint32_t received_tokens_max = 0) {
    DispatchInput mine = input();
    mine.received_tokens_max = received_tokens_max;
    received = exchange.dispatch(mine);
    exchange.combine({.y = received->x}, *received->route, {.x = out.bf16_rows(kHidden)});
  }
  void exchange_with(LowLatency& exchange) {
    batch = exchange.dispatch({.x = x.bf16_rows(kHidden),
                               .topk_idx = ids.view({kTokens, kTopk}),
                               .topk_weights = weights.view({kTokens, kTopk}),
                               .rows = LowLatencyRows::bf16});
    exchange.combine({.y = batch->x, .out = out.bf16_rows(kHidden)}, batch->handle);
  }

  Accelerator& accelerator;
  DeviceArray<uint16_t> x;
  DeviceArray<int64_t> ids;
  DeviceArray<float> weights;
  DeviceArray<uint16_t> out;
  std::optional<Received> received;
  std::optional<LowLatencyReceived> batch;
};

/// Captures an exchange, loses rank 2, and goes on; `make` makes the exchange, and
/// `exchange_with(batch, exchange)` runs it where no host waits.
template <class Make, class Exchange>
void GoingOn::refuse_a_graph_of_before(Make make, Exchange run, bool between_hosts) {
  Meeting met(kRanks), done(kRanks);
  Meeting replayed(kRanks - 1), reported(kRanks - 1), replayed_again(kRanks - 1);
  on_ranks_that_meet(
      kRanks, {&met, &done, &replayed, &reported, &replayed_again}, [&](uint32_t rank) {
        const auto job = Job::connect(options(rank));
        const auto world = between_hosts ? world_between_hosts(job, rank) : world_of(job);
        const auto exchange = make(*world);
        Batch batch(*world, {0, 1, 2});
        run(batch, *exchange);
        RecordingAccelerator& accelerator = recording_accelerator(*world);
        auto replay = accelerator.record([&] { run(batch, *exchange); });
        replay();
        exchange->wait();
        met.arrive_and_wait();
        if (rank == 2) {
          job->leave();
          done.arrive_and_wait();
          return;
        }
        while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
        Batch next(*world, {0, 1});
        run(next, *exchange);
        exchange->check();
        replay();
        replayed.arrive_and_wait();
        try {
          exchange->check();
          ADD_FAILURE() << "a replay of a graph of before was accepted";
        } catch (const InvalidArgument& error) {
          EXPECT_EQ(error.argument, "graph");
          EXPECT_THAT(error.what(), ::testing::HasSubstr("capture it anew"));
        }
        exchange->check();  // Each replay is reported once.
        run(next, *exchange);
        reported.arrive_and_wait();
        replay();
        replayed_again.arrive_and_wait();
        EXPECT_THROW(exchange->check(), InvalidArgument);
        done.arrive_and_wait();
      });
}

TEST_F(GoingOn, RefusesAGraphOfThroughputOfBefore) {
  refuse_a_graph_of_before(
      [](World& world) { return std::make_unique<ExpertParallel>(world, kThroughput); },
      [](Batch& batch, ExpertParallel& exchange) {
        batch.exchange_with(exchange, kRanks * kTokens);
      });
}

TEST_F(GoingOn, RefusesAGraphOfBeforeBetweenHosts) {
  refuse_a_graph_of_before(
      [](World& world) { return std::make_unique<ExpertParallel>(world, kThroughput); },
      [](Batch& batch, ExpertParallel& exchange) {
        batch.exchange_with(exchange, kRanks * kTokens);
      },
      true);
}

TEST_F(GoingOn, BetweenHostsAfterARankHasLeftDuringACall) {
  Meeting met(kRanks), done(kRanks);
  on_ranks_that_meet(kRanks, {&met, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_between_hosts(job, rank);
    ExpertParallel exchange(*world, kThroughput);
    Batch batch(*world, {0, 1, 2});
    batch.exchange_with(exchange);
    exchange.wait();
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      done.arrive_and_wait();
      return;
    }
    try {
      batch.exchange_with(exchange);
      ADD_FAILURE() << "a call without the rank that left ended well";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.facts.rank, 2u) << error.what();
    }
    while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
    Batch next(*world, {0, 1});
    for (int call = 0; call < 3; ++call) next.exchange_with(exchange);
    exchange.wait();
    constexpr uint16_t kTwo = 0x4000;  // Of bfloat16: each token has a row on both ranks.
    EXPECT_THAT(next.out.read(), ::testing::Each(kTwo));
    done.arrive_and_wait();
  });
}

TEST_F(GoingOn, RefusesAGraphOfLowLatencyOfBefore) {
  refuse_a_graph_of_before(
      [](World& world) { return std::make_unique<LowLatency>(world, kLowLatency); },
      [](Batch& batch, LowLatency& exchange) { batch.exchange_with(exchange); });
}

/// An exchange goes on by calls of the host, which a CUDA graph cannot hold.
template <class Make, class Exchange>
void GoingOn::go_on_before_a_capture(Make make, Exchange run) {
  Meeting met(kRanks), done(kRanks);
  on_ranks_that_meet(kRanks, {&met, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_of(job);
    const auto exchange = make(*world);
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      done.arrive_and_wait();
      return;
    }
    while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
    Batch batch(*world, {0, 1});
    recording_accelerator(*world).record([&] {
      try {
        run(batch, *exchange);
        ADD_FAILURE() << "the exchange went on within a capture";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument, "stream");
      }
    });
    run(batch, *exchange);
    done.arrive_and_wait();
  });
}

TEST_F(GoingOn, ThroughputDoesNotWithinACapture) {
  go_on_before_a_capture(
      [](World& world) { return std::make_unique<ExpertParallel>(world, kThroughput); },
      [](Batch& batch, ExpertParallel& exchange) {
        batch.exchange_with(exchange, kRanks * kTokens);
      });
}

TEST_F(GoingOn, LowLatencyDoesNotWithinACapture) {
  go_on_before_a_capture(
      [](World& world) { return std::make_unique<LowLatency>(world, kLowLatency); },
      [](Batch& batch, LowLatency& exchange) { batch.exchange_with(exchange); });
}

/// Its peers may have gone on with another exchange, and live.
TEST_F(GoingOn, ALowLatencyOfAWorldOfBeforeIsClosed) {
  Meeting met(kRanks), done(kRanks);
  on_ranks_that_meet(kRanks, {&met, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_of(job);
    LowLatency idle(*world, kLowLatency), used(*world, kLowLatency);
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      done.arrive_and_wait();
      return;
    }
    while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
    Batch batch(*world, {0, 1});
    batch.exchange_with(used);
    idle.close();
    used.close();
    done.arrive_and_wait();
  });
}

TEST_F(GoingOn, FollowsANewcomer) {
  Meeting met(kRanks), left(kRanks), done(kRanks);
  std::future<void> newcomer;
  const ExpertParallelOptions sizes{
      .experts = 6, .places_per_rank = 3, .hidden = kHidden, .topk = kTopk, .tokens_max = kTokens};
  const std::vector<int32_t> map{5, 4, -1, 3, 2, -1, 1, 0, -1};
  const auto expect_all = [&](ExpertParallel& exchange, World& world) {
    Batch batch(world, {0, 1, 2});
    for (int call = 0; call < 3; ++call) batch.exchange_with(exchange);
    EXPECT_EQ(exchange.expert_map(), map);
    EXPECT_TRUE(exchange.lost_experts().empty());
    world.barrier("exchanged");
  };
  on_ranks_that_meet(kRanks, {&met, &left, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_of(job);
    ExpertParallel exchange(*world, sizes);
    exchange.set_expert_map(map);
    expect_all(exchange, *world);
    std::vector<std::vector<int32_t>> held;
    exchange.on_experts_changed([&](const std::vector<int32_t>& now) { held.push_back(now); });
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      left.arrive_and_wait();
      done.arrive_and_wait();
      return;
    }
    left.arrive_and_wait();
    while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
    Batch among_two(*world, {0, 1});
    among_two.exchange_with(exchange);
    // Experts 0 and 1 have found the empty places.
    EXPECT_TRUE(exchange.lost_experts().empty());
    EXPECT_EQ(held.size(), 1u);
    if (rank == 0) {
      newcomer = std::async(std::launch::async, [&] {
        const auto joined = Job::join(options(2));
        const auto theirs = world_of(joined);
        ExpertParallel of_newcomer(*theirs, sizes);
        expect_all(of_newcomer, *theirs);
      });
    }
    job->replace(2);
    expect_all(exchange, *world);
    EXPECT_EQ(held.size(), 2u);
    done.arrive_and_wait();
  });
  newcomer.get();
}

TEST_F(GoingOn, ANewExchangeFindsTheRanksOfNow) {
  Meeting met(kRanks), done(kRanks);
  on_ranks_that_meet(kRanks, {&met, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_of(job);
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      done.arrive_and_wait();
      return;
    }
    while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
    ExpertParallel exchange(*world, kThroughput);
    Batch(*world, {0, 1}).exchange_with(exchange);
    done.arrive_and_wait();
  });
}

/// Stands for the session of an exchange.
struct MadeInTwoSteps {
  std::shared_ptr<World> world;
  static bool failed() { return false; }
  static bool captured() { return false; }
  static void retire() {}
};

/// Its peers have a session there, or wait for it in a step that it will not make again.
TEST_F(GoingOn, ARankThatFailsAloneMeetsTheOthersInAnotherWorld) {
  struct Stumble {};
  Meeting met(kRanks), done(kRanks);
  on_ranks_that_meet(kRanks, {&met, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_of(job);
    bool stumbles = false;
    const auto make = [&](std::shared_ptr<World> of, const MadeInTwoSteps*) {
      of->barrier("first step");
      if (std::exchange(stumbles, false)) throw Stumble();
      of->barrier("second step");
      return std::make_shared<MadeInTwoSteps>(std::move(of));
    };
    Sessions<MadeInTwoSteps> sessions(*world, make);
    met.arrive_and_wait();
    if (rank == 2) {
      job->leave();
      done.arrive_and_wait();
      return;
    }
    while (job->recover() != std::vector<uint32_t>{0, 1}) std::this_thread::sleep_for(1ms);
    stumbles = rank == 1;
    for (bool made = false; !made;) {
      try {
        sessions.for_call(std::nullopt, make, [](const MadeInTwoSteps&, const MadeInTwoSteps&) {});
        made = true;
      } catch (const Stumble&) {
        EXPECT_EQ(rank, 1u);
      } catch (const PeerLost& error) {
        EXPECT_EQ(rank, 0u);
        EXPECT_EQ(error.facts.rank, 1u);
      }
    }
    world->barrier("both have made a session");
    done.arrive_and_wait();
  });
}

/// Stands for the session of an exchange, whose state a test chooses.
struct Scripted {
  std::shared_ptr<World> world;
  bool is_failed = false, is_captured = false, is_retired = false;
  bool failed() const { return is_failed; }
  bool captured() const { return is_captured; }
  void retire() { is_retired = true; }
};

/// Sessions of one rank of a job.
struct Alone {
  static JobOptions options() {
    JobOptions options;
    options.size = 2;
    return options;
  }
  /// Makes a call, and returns its session.
  std::shared_ptr<Scripted> call(std::optional<Stream> stream = std::nullopt) {
    sessions.for_call(stream, make, [this](Scripted& before, Scripted& now) {
      EXPECT_EQ(&before, followed) << "a session is told which one it follows";
      EXPECT_NE(&before, &now);
      ++changes;
    });
    EXPECT_FALSE(sessions.must_go_on());
    return sessions.now();
  }

  std::shared_ptr<Job> job = Job::alone(options());
  std::unique_ptr<World> world =
      join_job(job, {std::make_shared<RecordingAccelerator>(), std::make_shared<ProcessFabric>()},
               {.timeout = 30s, .arena_bytes = 1 << 20});
  const Scripted* followed = nullptr;
  int changes = 0;
  std::function<std::shared_ptr<Scripted>(std::shared_ptr<World>, const Scripted*)> make =
      [this](std::shared_ptr<World> of, const Scripted* before) {
        followed = before;
        return std::make_shared<Scripted>(std::move(of));
      };
  Sessions<Scripted> sessions{*world, make};
};

TEST(Sessions, GoOnOnceForARecoveryThatConcernsThem) {
  Alone alone;
  EXPECT_EQ(alone.followed, nullptr);
  const auto first = alone.call();
  EXPECT_FALSE(alone.sessions.must_go_on(true)) << "there was no recovery";
  alone.job->recover();
  EXPECT_TRUE(alone.sessions.must_go_on(true)) << "the caller says that all others go on";
  EXPECT_EQ(alone.call(), first) << "neither the members have changed nor has it failed";
  first->is_failed = true;
  EXPECT_EQ(alone.call(), first) << "the recovery was before the failure";
  alone.job->recover();
  EXPECT_TRUE(alone.sessions.must_go_on());
  const auto second = alone.call();
  EXPECT_NE(second, first);
  EXPECT_EQ(alone.changes, 1);
  EXPECT_TRUE(first->is_retired);
  EXPECT_FALSE(are_same(*first->world, *second->world));
  EXPECT_TRUE(are_same(*alone.world, *second->world));
  EXPECT_EQ(alone.call(), second);
  EXPECT_EQ(&alone.sessions.last(), second.get());
  EXPECT_TRUE(alone.sessions.captured().empty());
}

/// A recovery that it does not know of yet is for its next call.
TEST(Sessions, GoOnForARecoveryThatComesMeanwhile) {
  Alone alone;
  const auto ignore = [](Scripted&, Scripted&) {};
  alone.job->recover();
  Sessions<Scripted> later(*alone.world, alone.make);
  later.now()->is_failed = true;
  EXPECT_FALSE(later.must_go_on()) << "the recovery was before it was made";
  alone.job->recover();
  later.for_call(std::nullopt, alone.make, ignore);
  later.now()->is_failed = true;
  EXPECT_FALSE(later.must_go_on()) << "the recovery was before the failure";
  alone.job->recover();
  const auto recovers_meanwhile = [&](std::shared_ptr<World> of, const Scripted*) {
    alone.job->recover();
    return std::make_shared<Scripted>(std::move(of), true);
  };
  later.for_call(std::nullopt, recovers_meanwhile, ignore);
  EXPECT_TRUE(later.must_go_on());
}

/// Another exchange has gone on before the members changed once more.
TEST_F(GoingOn, NotInAWorldThatIsBehind) {
  Meeting met(kRanks), moved(kRanks), done(kRanks);
  on_ranks_that_meet(kRanks, {&met, &moved, &done}, [&](uint32_t rank) {
    const auto job = Job::connect(options(rank));
    const auto world = world_of(job);
    const auto make = [](std::shared_ptr<World> of, const Scripted*) {
      return std::make_shared<Scripted>(std::move(of));
    };
    const auto ignore = [](Scripted&, Scripted&) {};
    Sessions<Scripted> moves(*world, make), follows(*world, make);
    met.arrive_and_wait();
    if (rank == 2) job->leave();
    while (rank != 2 && job->recover() != std::vector<uint32_t>{0, 1})
      std::this_thread::sleep_for(1ms);
    if (rank != 2) moves.for_call(std::nullopt, make, ignore);
    moved.arrive_and_wait();
    if (rank == 1) job->leave();
    while (rank == 0 && job->recover() != std::vector<uint32_t>{0})
      std::this_thread::sleep_for(1ms);
    if (rank == 0) {
      follows.for_call(std::nullopt, make, ignore);
      EXPECT_EQ(membership_epoch_of(*follows.now()->world), job->epoch());
      EXPECT_FALSE(follows.must_go_on());
    }
    done.arrive_and_wait();
  });
}

/// Both exchanges of a world go on, in one world.
TEST(Sessions, ThatShareAWorldGoOnWithTheFirst) {
  Alone alone;
  Sessions<Scripted> others(*alone.world, alone.make);
  const auto first = others.now();
  alone.call()->is_failed = true;
  alone.job->recover();
  const auto second = alone.call();
  EXPECT_TRUE(others.must_go_on()) << "its world is another one, though it has not failed";
  others.for_call(std::nullopt, alone.make, [](Scripted&, Scripted&) {});
  EXPECT_NE(others.now(), first);
  EXPECT_TRUE(are_same(*others.now()->world, *second->world));
  EXPECT_EQ(alone.call(), second);
}

TEST(Sessions, KeepWhatAGraphHasCapturedAndRefuseMemoryOfBefore) {
  Alone alone;
  const auto first = alone.call();
  first->is_failed = first->is_captured = true;
  const ArenaBlock before = arena_of(*first->world).allocate(256, Stream{});
  EXPECT_NO_THROW(alone.sessions.require_not_gone("x", before.data()));
  alone.job->recover();
  const auto second = alone.call();
  EXPECT_THAT(alone.sessions.captured(), ElementsAre(first));
  EXPECT_THROW(alone.sessions.require_not_gone("x", before.data()), InvalidArgument);
  const Arena& arena = arena_of(*first->world);
  const std::byte* const end = arena.base() + arena.capacity();
  EXPECT_THROW(alone.sessions.require_not_gone("x", end - 1), InvalidArgument);
  EXPECT_NO_THROW(alone.sessions.require_not_gone("x", end));
  const ArenaBlock now = arena_of(*second->world).allocate(256, Stream{});
  EXPECT_NO_THROW(alone.sessions.require_not_gone("x", now.data()));
  EXPECT_NO_THROW(alone.sessions.require_not_gone("x", nullptr));
}

TEST(Sessions, RefuseMemoryOfTheSecondWorldOnceTheFirstIsFreed) {
  Alone alone;
  auto first = alone.call();
  first->is_failed = true;
  alone.job->recover();
  const auto second = alone.call();
  const ArenaBlock block = arena_of(*second->world).allocate(256, Stream{});
  second->is_failed = true;
  alone.job->recover();
  alone.call();
  first.reset();
  EXPECT_THROW(alone.sessions.require_not_gone("x", block.data()), InvalidArgument);
}

/// The session of before stays, and the next call goes on in a world of its own.
TEST(Sessions, StayIfNoneCanBeMade) {
  struct Stumble {};
  Alone alone;
  const auto first = alone.call();
  first->is_failed = true;
  alone.job->recover();
  const auto make = std::exchange(
      alone.make, [](std::shared_ptr<World>, const Scripted*) -> std::shared_ptr<Scripted> {
        throw Stumble();
      });
  EXPECT_THROW(alone.call(), Stumble);
  EXPECT_EQ(alone.sessions.now(), first);
  EXPECT_FALSE(first->is_retired);
  const auto half_made = WorldAccess::pinned(*alone.world);
  alone.make = make;
  const auto second = alone.call();
  EXPECT_NE(second, first);
  EXPECT_FALSE(are_same(*half_made, *second->world));
}

/// It meets the others in the world to which they have gone on since.
TEST(Sessions, ThatCouldNotBeMadeFollowTheOthers) {
  struct Stumble {};
  Alone alone;
  const auto ignore = [](Scripted&, Scripted&) {};
  Sessions<Scripted> others(*alone.world, alone.make);
  alone.call()->is_failed = true;
  alone.job->recover();
  const auto fails = [](std::shared_ptr<World>, const Scripted*) -> std::shared_ptr<Scripted> {
    throw Stumble();
  };
  EXPECT_THROW(alone.sessions.for_call(std::nullopt, fails, ignore), Stumble);
  others.for_call(std::nullopt, alone.make, ignore);
  others.now()->is_failed = true;
  alone.job->recover();
  others.for_call(std::nullopt, alone.make, ignore);
  alone.sessions.for_call(std::nullopt, alone.make, ignore);
  EXPECT_TRUE(are_same(*alone.sessions.now()->world, *others.now()->world));
  EXPECT_FALSE(others.must_go_on());
}

/// Threads have no job.
TEST(Sessions, OfThreadsNeverGoOn) {
  const auto worlds = World::in_process(1, "host", {.timeout = 20s, .arena_bytes = 1 << 20});
  const auto make = [](std::shared_ptr<World> of, const Scripted*) {
    return std::make_shared<Scripted>(std::move(of), true);
  };
  Sessions<Scripted> sessions(*worlds[0], make);
  EXPECT_FALSE(sessions.must_go_on());
}

void on_every_rank_of_a_world(
    const std::function<void(uint32_t rank, const std::shared_ptr<World>& world)>& run) {
  const auto worlds = World::in_process(kRanks, "host", {.timeout = 20s, .arena_bytes = 4 << 20});
  on_every_rank(kRanks, [&](uint32_t rank) { run(rank, WorldAccess::pinned(*worlds[rank])); });
}

/// Rank 0 has finished two calls that rank 1 has not, and rank 2 is new.
TEST(Sessions, NameACallThatNotAllRanksHaveFinished) {
  on_every_rank_of_a_world([](uint32_t rank, const std::shared_ptr<World>& world) {
    const auto identity = std::make_shared<char>();
    Session before(world, kThroughput, identity, nullptr);
    Batch batch(*world, {0, 1, 2});
    for (int call = 0; call < 4; ++call)
      batch.received = before.dispatcher.dispatch(batch.input(), Stream{});
    before.combiner.combine({.y = batch.received->x}, *batch.received->route,
                            {.x = batch.out.bf16_rows(kHidden)}, Stream{});
    EXPECT_EQ(before.finished(), 5u);
    if (rank != 0) before.context.window.workspace()->epoch -= 2;
    Session now(world, kThroughput, identity, rank == 2 ? nullptr : &before);
    EXPECT_EQ(now.finished(), 3u);
    const std::optional<OperationAborted> error = now.undone(before);
    ASSERT_EQ(error.has_value(), rank == 0);
    if (!error) return;
    EXPECT_EQ(error->sequence, 4u);
    EXPECT_THAT(error->lost, ElementsAre(2));
    EXPECT_THAT(error->operation, ::testing::HasSubstr("dispatch"));
  });
}

/// An interrupt ends a call of the host that the device may still finish; a block may fail before
/// others begin.
TEST(Sessions, CountACallThatHasReturnedAndWhoseKernelHasFinished) {
  on_every_rank_of_a_world([](uint32_t, const std::shared_ptr<World>& world) {
    Session session(world, kThroughput, std::make_shared<char>(), nullptr);
    Batch batch(*world, {0, 1, 2});
    for (int call = 0; call < 2; ++call) session.dispatcher.dispatch(batch.input(), Stream{});
    throughput::Workspace& words = *session.context.window.workspace();
    ++words.epoch;
    EXPECT_EQ(session.finished(), 2u);
    --words.epoch;
    const WaitContext failure = session.context.wait_context();
    failure.report->failure = static_cast<uint32_t>(Failure::deadline);
    EXPECT_EQ(session.finished(), 1u);
    words.readers = 1;
    EXPECT_EQ(session.finished(), 2u);
    words.readers = 0;
    failure.report->phase = expert_major::kTooFewPlaces;
    EXPECT_EQ(session.finished(), 2u) << "rows were grouped after the last call";
  });
}

/// As inside a host, a call counts once all blocks have begun it, whether or not it ends.
TEST(Sessions, CountACallBetweenHostsThatHasBegun) {
  struct Interrupted {};
  std::atomic<bool> interrupts = false;
  const auto worlds = World::in_process(
      2, "host", {.timeout = 60s, .arena_bytes = 4 << 20, .hosts = 2, .interrupt = [&] {
                    if (interrupts) throw Interrupted();
                  }});
  Meeting ready(2), done(2);
  on_ranks_that_meet(2, {&ready, &done}, [&](uint32_t rank) {
    const auto world = WorldAccess::pinned(*worlds[rank]);
    Session session(world, kThroughput, std::make_shared<char>(), nullptr);
    Batch batch(*world, {0, 1});
    session.dispatcher.dispatch(batch.input(), Stream{});
    const uint32_t epoch = session.context.window.workspace()->epoch;
    session.context.wait(Stream{});
    ready.arrive_and_wait();
    if (rank == 0) {
      interrupts = true;
      EXPECT_THROW(session.dispatcher.dispatch(batch.input(), Stream{}), Interrupted);
      interrupts = false;
      EXPECT_EQ(session.context.window.workspace()->epoch, epoch + 1);
    }
    done.arrive_and_wait();
  });
}

const std::vector<int32_t> kTurned{5, 4, 3, 2, 1, 0};

/// A rank was lost after rank 0 had returned from it and before the others had.
TEST(Sessions, UndoAMapThatNotAllRanksHaveSet) {
  on_every_rank_of_a_world([](uint32_t rank, const std::shared_ptr<World>& world) {
    const auto identity = std::make_shared<char>();
    Session before(world, kThroughput, identity, nullptr);
    Batch batch(*world, {0, 1, 2});
    before.dispatcher.dispatch(batch.input(), Stream{});
    if (rank == 0) before.set_experts(kTurned);
    Session now(world, kThroughput, identity, &before);
    EXPECT_NE(now.experts.expert_at(), kTurned);
    const std::optional<OperationAborted> error = now.undone(before);
    ASSERT_EQ(error.has_value(), rank == 0);
    if (error) {
      EXPECT_THAT(error->operation, ::testing::HasSubstr("set_expert_map"));
    }
    now.set_experts(kTurned);
    Session later(world, kThroughput, identity, &now);
    EXPECT_EQ(later.experts.expert_at(), kTurned);
  });
}

TEST(Sessions, OfLowLatencyTakeTheLastMapThatARankHasSet) {
  on_every_rank_of_a_world([](uint32_t rank, const std::shared_ptr<World>& world) {
    low_latency::Session before(world, kLowLatency, nullptr);
    if (rank == 1) before.context.experts.set_next(kTurned);
    low_latency::Session now(world, kLowLatency, &before);
    EXPECT_EQ(now.context.experts.expert_at(), kTurned);
    low_latency::Session later(world, kLowLatency, &now);
    EXPECT_EQ(later.context.experts.expert_at(), kTurned);
  });
}

/// Peers that have a session may write to a window that they know.
TEST(Sessions, FreeNoWindowThatPeersKnowIfTheyFail) {
  on_every_rank_of_a_world([](uint32_t rank, const std::shared_ptr<World>& world) {
    Arena& arena = arena_of(*world);
    const auto identity = std::make_shared<char>();
    Session before(world, kThroughput, identity, nullptr);
    if (rank == 0) before.experts.set(kTurned);
    const size_t used = arena.used();
    EXPECT_THROW(Session(world, kThroughput, identity, &before), InvalidArgument);
    EXPECT_EQ(arena.used(), used) << "peers do not know the window yet";
    size_t with_window = 0;
    {
      const throughput::Setup setup(*world, kThroughput);
      const throughput::ControlWindow window(setup);
      with_window = arena.used();
    }
    EXPECT_EQ(arena.used(), with_window);
    {
      const low_latency::Setup setup(*world, kLowLatency);
      low_latency::PeerWindows windows(setup);
      windows.exchange(low_latency::CallStreams(setup), nullptr);
      with_window = arena.used();
    }
    EXPECT_EQ(arena.used(), with_window);
    world->barrier("looked");
  });
}

/// Counts are those of experts, wherever they are held.
TEST(Sessions, CountChoicesByExpert) {
  on_every_rank_of_a_world([](uint32_t rank, const std::shared_ptr<World>& world) {
    const auto identity = std::make_shared<char>();
    Session before(world, kThroughput, identity, nullptr);
    Batch batch(*world, {0, 0, 0});  // All choices are experts 0 and 1.
    const uint64_t all = kRanks * kTokens;
    const auto expect = [&](const Session& session, std::vector<std::vector<uint64_t>> of_ranks) {
      EXPECT_EQ(session.metrics().received_choices_by_expert, of_ranks.at(rank));
      EXPECT_EQ(session.load().tokens_per_expert, of_ranks.at(rank));
      world->barrier("looked");
    };
    before.dispatcher.dispatch(batch.input(), Stream{});
    expect(before, {{all, all}, {0, 0}, {0, 0}});
    before.set_experts(std::vector<int32_t>{2, 0, 1, 3, 4, 5});
    expect(before, {{0, all}, {0, 0}, {0, 0}});
    before.dispatcher.dispatch(batch.input(), Stream{});
    const Session now(world, kThroughput, identity, &before);
    expect(now, {{0, 2 * all}, {all, 0}, {0, 0}});
  });
}

}  // namespace
}  // namespace tokenyard::test
