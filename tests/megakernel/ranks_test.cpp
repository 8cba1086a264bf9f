// Graphs of several ranks that pass data on, and ranks that die or never start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <thread>

#include "fabric/meeting_place.hpp"
#include "megakernel/counter_graph.hpp"
#include "world/in_process.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

class RunningRanks : public OnDevices {};
INSTANTIATE_ON_DEVICES(RunningRanks);

/// Every rank adds its number and sends the sum to the next rank; the last one to rank 0.
uint64_t pass_round(World& world, uint32_t rounds) {
  const uint32_t rank = world.rank(), next = (rank + 1) % world.size();
  TensorMemory memory(world);
  const std::vector<TensorView> places = memory.shared(sizeof(uint64_t));
  Graph graph(steps(), {.rank = rank, .ranks = world.size()});
  const Tensor number = graph.tensor({.name = "number", .bytes = 8, .given = Given::always});
  const Event here = graph.event({.name = "here"});
  Step::Args args = adds(rank + 1);
  args.value = places[rank].as<uint64_t>();
  args.to = Peer<uint64_t>(places[next].as<uint64_t>());
  // Rank 0 takes the sum of the previous iteration.
  graph.add<Step>(args, {.name = "pass",
                         .reads = {number.all()},
                         .writes = {number.all().of(next)},
                         .waits = {{here, rank == 0 ? 1u : 0u}},
                         .signals = {{.event = here, .rank = next}}});
  Megakernel kernel(world, graph, {.workers = 1});
  kernel.run(rounds);
  uint64_t value = 0;
  world.barrier("all have run");
  memory.read({&value, {1}}, places[rank]);
  world.barrier("all have read");
  return value;
}

TEST_P(RunningRanks, HandOnWhatTheyHave) {
  run_threads(GetParam(), 3, quick(), [](World& world) {
    const uint64_t sum = pass_round(world, 5);
    EXPECT_EQ(world.rank() == 0 ? sum : 30, 5u * (1 + 2 + 3));
  });
}

/// A graph counts on every rank. A rebuilt world leaves empty slots out.
TEST_P(RunningRanks, AnEmptySlotIsRefused) {
  const auto worlds = in_process_without({1}, 3, GetParam(), quick());
  on_every_rank(3, [&](uint32_t rank) {
    if (!worlds[rank]) return;
    World& world = *worlds[rank];
    const auto expect_refused = [](const std::function<void()>& make) {
      try {
        make();
        ADD_FAILURE() << "it was made";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.rank, 1u);
        EXPECT_THAT(error.what(), HasSubstr("a compact world of the job has no other"));
      }
    };
    expect_refused([&] { TensorMemory(world).shared(8); });
    Graph graph(steps(), {.rank = rank, .ranks = 3});
    expect_refused([&] { Megakernel(world, graph, {.workers = 1}); });
    const auto next = world.rebuild({});
    const uint64_t sum = pass_round(*next, 5);
    EXPECT_EQ(next->rank() == 0 ? sum : 15, 5u * (1 + 2));
  });
}

TEST_P(RunningRanks, ARankThatNeverComesIsNamed) {
  if (!devices_apart(2)) GTEST_SKIP() << "ranks that share a GPU begin together, or not at all";
  auto worlds = World::in_process(2, GetParam(), quick(std::chrono::milliseconds(300)));
  on_every_rank(2, [&](uint32_t rank) {
    TensorMemory memory(*worlds[rank]);
    Graph graph(steps(), {.rank = rank, .ranks = 2});
    graph.add<Step>({.value = memory.local(8).as<uint64_t>(),
                     .to = Peer<uint64_t>(memory.local(8).as<uint64_t>()),
                     .add = 1,
                     .factor = nullptr,
                     .end_at = 0,
                     .promised = {},
                     .promise = 0,
                     .kept = 0},
                    {});
    Megakernel kernel(*worlds[rank], graph, {.workers = 1});
    if (rank == 1) return;
    try {
      kernel.run(1);
      ADD_FAILURE() << "it ran alone";
    } catch (const TaskTimeout& error) {
      EXPECT_EQ(error.facts.rank, 1u);
      EXPECT_THAT(error.facts.phase, HasSubstr("a rank begins the run"));
    }
  });
}

/// Rank 0 passes a number to rank 1, which passes it back until it ends midway; then a worker of
/// rank 0 continues with it. Each waits for all others, so all waits time out at once.
void pass_on_for_ever(World& world) {
  const uint32_t rank = world.rank(), other = 1 - rank;
  TensorMemory memory(world);
  auto* const value = memory.local(sizeof(uint64_t)).as<uint64_t>();
  Graph graph(steps(), {.rank = rank, .ranks = 2});
  const Event to_other = graph.event({.name = "to the other rank"});
  const Event back = graph.event({.name = "back"});
  const Event local = graph.event({.name = "within rank 0"});
  const Event round = graph.event({.name = "round"});
  const auto add = [&](TaskOptions options) {
    Step::Args args = adds(1);
    args.value = value;
    args.to = Peer<uint64_t>(value);
    graph.add<Step>(args, std::move(options));
  };
  if (rank == 0) {
    add({.name = "send", .waits = {{round, 1}}, .signals = {{to_other, other}}, .worker = 0});
    add({.name = "receive", .waits = {{back}}, .signals = {{local}}, .worker = 1});
    add({.name = "go on", .waits = {{local}}, .signals = {{round}}, .worker = 0});
  } else {
    add({.name = "answer", .waits = {{to_other}}, .signals = {{back, other}}, .worker = 0});
  }
  Megakernel kernel(world, graph, {.workers = 2});
  kernel.start();
  kernel.feed(1'000'000'000);
  kernel.await(3);
  if (rank == 1) world.cancel();
  kernel.stop();
}

TEST_P(RunningRanks, ARankThatEndsInTheMiddleOfAnIterationIsNamedWithWhatAwaitsIt) {
  if (!devices_apart(2)) GTEST_SKIP() << "ranks that share a GPU end together";
  auto worlds = World::in_process(2, GetParam(), quick(std::chrono::milliseconds(500)));
  on_every_rank(2, [&](uint32_t rank) {
    try {
      pass_on_for_ever(*worlds[rank]);
      ADD_FAILURE() << "rank " << rank << " came to an end";
    } catch (const Cancelled& error) {
      EXPECT_EQ(rank, 1u) << error.what();
    } catch (const TaskTimeout& error) {
      EXPECT_EQ(rank, 0u) << error.what();
      EXPECT_EQ(error.facts.rank, 1u) << error.dump;
      EXPECT_THAT(error.facts.phase, HasSubstr("task 'receive' awaits event 'back'")) << error.dump;
      EXPECT_THAT(error.dump, HasSubstr("'go on' awaits event 'within rank 0'"));
    }
  });
  // The devices are still usable.
  run_threads(GetParam(), 2, quick(), [](World& world) {
    const uint64_t sum = pass_round(world, 5);
    EXPECT_EQ(world.rank() == 0 ? sum : 15, 5u * (1 + 2));
  });
}

/// No deadline passes: rank 1 sends its goodbye once its run was cancelled.
TEST_P(RunningRanks, ARankThatLeavesInTheMiddleOfAnIterationEndsTheRunOfItsPeer) {
  if (!devices_apart(2)) GTEST_SKIP() << "ranks that share a GPU end together";
  auto worlds = World::in_process(2, GetParam(), quick(std::chrono::seconds(600)));
  on_every_rank(2, [&](uint32_t rank) {
    try {
      pass_on_for_ever(*worlds[rank]);
      ADD_FAILURE() << "rank " << rank << " came to an end";
    } catch (const Cancelled& error) {
      EXPECT_EQ(rank, 1u) << error.what();
      worlds[1]->goodbye()();
    } catch (const PeerLost& error) {
      EXPECT_EQ(rank, 0u) << error.what();
      EXPECT_EQ(error.facts.rank, 1u);
      EXPECT_THAT(error.facts.phase, HasSubstr("awaits event 'back'"));
      EXPECT_THAT(error.facts.phase, HasSubstr("(it left the world)"));
    }
  });
}

TEST_P(RunningRanks, ARankThatLeavesBeforeARunEndsIt) {
  if (!devices_apart(2)) GTEST_SKIP() << "ranks that share a GPU begin together, or not at all";
  auto worlds = World::in_process(2, GetParam(), quick(std::chrono::seconds(600)));
  on_every_rank(2, [&](uint32_t rank) {
    TensorMemory memory(*worlds[rank]);
    Graph graph(steps(), {.rank = rank, .ranks = 2});
    Step::Args args = adds(1);
    args.value = memory.local(8).as<uint64_t>();
    args.to = Peer<uint64_t>(memory.local(8).as<uint64_t>());
    graph.add<Step>(args, {});
    Megakernel kernel(*worlds[rank], graph, {.workers = 1});
    if (rank == 1) return worlds[1]->goodbye()();
    try {
      kernel.run(1);
      ADD_FAILURE() << "it ran alone";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.facts.rank, 1u);
      EXPECT_THAT(error.facts.phase, HasSubstr("a rank begins the run (it left the world)"));
    }
  });
}

TEST(RunningProcesses, HandOnWhatTheyHave) {
  run_processes("host", 2, OnDevices::quick(), [](World& world) {
    const uint64_t sum = pass_round(world, 20);
    if (world.rank() == 0 && sum != 20u * (1 + 2)) throw std::runtime_error("a wrong sum");
  });
}

TEST(RunningProcesses, ARankThatIsKilledEndsTheRunOfItsPeer) {
  const uint16_t port = free_port();
  std::array<int, 2> joined{};
  ASSERT_EQ(pipe(joined.data()), 0);
  RankProcesses processes(2, [&](uint32_t rank) {
    const auto world = connect_world({.port = port, .rank = rank, .size = 2, .local_rank = rank},
                                     "host", OnDevices::quick(std::chrono::seconds(5)));
    if (write(joined[1], "x", 1) != 1) throw std::runtime_error("the pipe is closed");
    try {
      pass_round(*world, 1'000'000'000);
    } catch (const PeerLost&) {
      return;
    } catch (const TaskTimeout&) {
      return;  // It awaited the dead rank's signal before it learned of the death.
    }
    throw std::runtime_error("it went on alone");
  });
  std::array<char, 2> both{};
  for (char& one : both) ASSERT_EQ(read(joined[0], &one, 1), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // By now they most likely run.
  processes.signal(1, SIGKILL);
  EXPECT_EQ(processes.wait(0), 0);
  for (const int end : joined) close(end);
}

}  // namespace
}  // namespace tokenyard::megakernel
