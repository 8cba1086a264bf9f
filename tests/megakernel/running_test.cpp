// Graphs that run on host ranks: iterations, loops, hosts that feed, and what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <thread>

#include "device/accelerator.hpp"
#include "fabric/worlds.hpp"
#include "megakernel/worker_kernel.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

/// Adds `add` times the host's factor to a number, wherever it lies; ends the loop from `end_at`
/// on.
struct Step {
  static constexpr const char* kName = "step";
  struct Args {
    uint64_t* value;
    Peer<uint64_t> to;
    uint64_t add;
    const uint64_t* factor;  ///< host-visible, or null
    uint64_t end_at;         ///< 0: never
    Event promised;
    uint32_t promise, kept;  ///< of a dynamic event; promise 0: none
  };
  static DEVICE void run(Context& context, const Args& args) {
    if (context.thread() != 0) return;
    const uint64_t factor = args.factor == nullptr ? 1 : *args.factor;
    const uint64_t value = *args.value + args.add * factor;
    store<Order::weak, Scope::sys>(args.to, value);
    if (args.end_at > 0 && value >= args.end_at) context.end_loop();
    if (args.promise == 0) return;
    context.expect(args.promised, args.promise);
    context.signal(args.promised, context.rank(), args.kept);
  }
};

using StepTasks = TaskList<Step>;
DEFINE_HOST_MEGAKERNEL(step_kernel, StepTasks)
const TaskSet kSteps = task_set<StepTasks>(step_kernel.entry);

WorldOptions quick(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return {.timeout = timeout, .arena_bytes = size_t{4} << 20};
}

/// One rank, a number, and a loop over tasks that each add to it.
struct Counter {
  explicit Counter(World& world) : memory(world) {
    value = static_cast<uint64_t*>(memory.local(sizeof(uint64_t)));
    graph.loop_on(ended);
  }

  /// A task after the one before.
  void step(TaskOptions options, Step::Args args) {
    args.value = value;
    args.to = Peer<uint64_t>(value);
    options.reads = options.writes = {number.all()};
    if (last) options.waits.push_back({*last});
    last = graph.event({.name = "after " + options.name});
    options.signals.push_back({*last});
    graph.add<Step>(args, std::move(options));
  }
  /// The last one, which the loop waits for.
  void close() {
    TaskOptions options{.name = "close", .reads = {number.all()}, .waits = {{*last}}};
    options.signals = {{ended}};
    graph.add<Step>({.value = value,
                     .to = Peer<uint64_t>(scrap()),
                     .add = 0,
                     .factor = nullptr,
                     .end_at = end_at,
                     .promised = {},
                     .promise = 0,
                     .kept = 0},
                    std::move(options));
  }
  uint64_t* scrap() { return static_cast<uint64_t*>(memory.local(sizeof(uint64_t))); }
  uint64_t read() {
    uint64_t now = 0;
    memory.read(&now, value, sizeof(now));
    return now;
  }

  TensorMemory memory;
  uint64_t* value;
  uint64_t end_at = 0;
  Graph graph{kSteps, {.rank = 0, .ranks = 1}};
  Tensor number = graph.tensor({.name = "number", .bytes = 8, .given = Given::always});
  Event ended = graph.event({.name = "ended"});
  std::optional<Event> last;
};

Step::Args adds(uint64_t number) {
  return {.value = nullptr,
          .to = {},
          .add = number,
          .factor = nullptr,
          .end_at = 0,
          .promised = {},
          .promise = 0,
          .kept = 0};
}

/// A world of one rank, for tests in which ranks do not matter.
std::unique_ptr<World> alone(const WorldOptions& options = quick()) {
  return std::move(World::in_process(1, "host", options).front());
}

TEST(Running, AsManyIterationsAsAskedRunAfterRun) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.step({.name = "ten"}, adds(10));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 3});
  EXPECT_EQ(kernel.run(4), 4u);
  EXPECT_EQ(counter.read(), 44u);
  EXPECT_EQ(kernel.run(1), 1u);
  EXPECT_EQ(counter.read(), 55u);
  EXPECT_EQ(kernel.finished_iterations(), 5u);
}

TEST(Running, ByASchedulerThatGivesOutTasks) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.step({.name = "ten"}, adds(10));
  counter.end_at = 50;
  counter.close();
  Megakernel kernel(*world, counter.graph,
                    {.workers = 2, .schedulers = 2, .task_slots = 1, .trace_records = 10});
  EXPECT_EQ(kernel.run(2), 2u);
  EXPECT_EQ(counter.read(), 22u);
  EXPECT_EQ(kernel.run(0), 3u);  // Until there are 50.
  EXPECT_EQ(kernel.finished_iterations(), 5u);
  kernel.start();
  kernel.feed();
  kernel.await(1);
  EXPECT_EQ(*counter.value, 66u);
  EXPECT_EQ(kernel.stop(), 1u);
}

TEST(Running, ASchedulerNamesTheTaskThatCannotBegin) {
  const auto world = alone(quick(std::chrono::milliseconds(200)));
  Counter counter(*world);
  const Event rows = counter.graph.event({.name = "rows", .dynamic_max = 4});
  Step::Args promises = adds(1);
  promises.promised = rows;
  promises.promise = 2;
  promises.kept = 1;
  counter.step({.name = "send", .signals = {{.event = rows, .dynamic = true}}, .expects = {rows}},
               promises);
  counter.step({.name = "receive", .waits = {{rows}}}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2, .schedulers = 1});
  try {
    kernel.run(1);
    FAIL() << "it went on";
  } catch (const TaskTimeout& error) {
    EXPECT_THAT(error.facts.phase, HasSubstr("task 'receive' awaits event 'rows'"));
    EXPECT_THAT(error.dump, HasSubstr("has 3 of 4"));
  }
}

TEST(Running, UntilATaskEndsTheLoop) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "three"}, adds(3));
  counter.end_at = 10;
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  EXPECT_EQ(kernel.run(0), 4u);
  EXPECT_EQ(counter.read(), 12u);
  EXPECT_EQ(kernel.run(7), 1u);  // It is past the end already.
}

TEST(Running, WhenTheHostFeedsIt) {
  const auto world = alone();
  Counter counter(*world);
  auto* const factor = static_cast<uint64_t*>(counter.memory.visible(sizeof(uint64_t)));
  Step::Args args = adds(1);
  args.factor = factor;
  counter.step({.name = "times factor"}, args);
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  kernel.start();
  uint64_t expected = 0;
  for (uint32_t request = 1; request <= 5; ++request) {
    *factor = request * 100;
    expected += *factor;
    kernel.feed();
    kernel.await(request);
    EXPECT_EQ(*counter.value, expected);
  }
  EXPECT_THROW(kernel.run(1), InvalidArgument);
  EXPECT_THROW(kernel.await(6), InvalidArgument);
  EXPECT_EQ(kernel.stop(), 5u);
  kernel.start();  // Once more, after other runs.
  kernel.feed(2);
  EXPECT_EQ(kernel.stop(), 2u);
  EXPECT_EQ(counter.read(), expected + 2 * *factor);
  kernel.start();  // And left to the destructor.
}

TEST(Running, ATaskThatCannotGoOnIsNamedWithWhatItAwaits) {
  const auto world = alone(quick(std::chrono::milliseconds(200)));
  Counter counter(*world);
  const Event rows = counter.graph.event({.name = "rows", .dynamic_max = 8});
  Step::Args promises = adds(1);
  promises.promised = rows;
  promises.promise = 5;
  promises.kept = 3;
  counter.step({.name = "send", .signals = {{.event = rows, .dynamic = true}}, .expects = {rows}},
               promises);
  counter.step({.name = "receive", .waits = {{rows}}}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  try {
    kernel.run(3);
    FAIL() << "it went on";
  } catch (const TaskTimeout& error) {
    EXPECT_THAT(error.facts.phase, HasSubstr("task 'receive' awaits event 'rows'"));
    EXPECT_EQ(error.facts.expected, 8u);
    EXPECT_EQ(error.facts.seen, 6u);  // Eight less the five promised, and three of them.
    EXPECT_THAT(error.dump, HasSubstr("rank 0 worker 0: "));
    EXPECT_THAT(error.dump, HasSubstr("rank 0 worker 1: "));
  }
  EXPECT_EQ(kernel.finished_iterations(), 0u);
  EXPECT_EQ(counter.read(), 1u);
  EXPECT_THROW(kernel.run(1), TaskTimeout);  // Counters are not what they should be.
}

TEST(Running, ANumberBeyondItsBoundIsRefused) {
  const auto world = alone();
  Counter counter(*world);
  const Event rows = counter.graph.event({.name = "rows", .dynamic_max = 2});
  Step::Args promises = adds(1);
  promises.promised = rows;
  promises.promise = 3;
  counter.step({.name = "send", .signals = {{.event = rows, .dynamic = true}}, .expects = {rows}},
               promises);
  counter.close();
  Megakernel kernel(*world, counter.graph);
  try {
    kernel.run(1);
    FAIL() << "it was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "expect() of task 'send'");
    EXPECT_EQ(error.seen, "3");
  }
}

TEST(Running, CancelEndsARunThatWouldNotEnd) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  kernel.start();
  kernel.feed();
  kernel.await(1);
  world->cancel();
  EXPECT_THROW(kernel.stop(), Cancelled);
  EXPECT_EQ(kernel.finished_iterations(), 1u);
}

TEST(Running, WhatCannotBeRunIsRefused) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  EXPECT_THROW(Megakernel(*world, counter.graph, {.workers = 1000}), InvalidGraph);
  EXPECT_THROW(Megakernel(*world, counter.graph, {.compute_warps = 99}), InvalidArgument);
  EXPECT_THROW(Megakernel(*world, counter.graph, {.ring_units = 99}), InvalidArgument);
  EXPECT_THROW(Megakernel(*world, Graph(kSteps, {.rank = 0, .ranks = 2})), InvalidGraph);
  Graph straight(kSteps, {});
  straight.add<Step>(adds(1), {});
  straight.once();
  Megakernel once(*world, straight);
  EXPECT_THROW(once.run(2), InvalidArgument);
  EXPECT_THROW(once.start(), InvalidArgument);
}

/// Every rank adds its number and pushes the sum to the next; the last one back to rank 0.
uint64_t pass_round(World& world, uint32_t rounds) {
  const uint32_t rank = world.rank(), next = (rank + 1) % world.size();
  TensorMemory memory(world);
  const std::vector<void*> places = memory.shared(sizeof(uint64_t));
  Graph graph(kSteps, {.rank = rank, .ranks = world.size()});
  const Tensor number = graph.tensor({.name = "number", .bytes = 8, .given = Given::always});
  const Event here = graph.event({.name = "here"});
  Step::Args args = adds(rank + 1);
  args.value = static_cast<uint64_t*>(places[rank]);
  args.to = Peer<uint64_t>(static_cast<uint64_t*>(places[next]));
  // Rank 0 takes what came round in the iteration before.
  graph.add<Step>(args, {.name = "pass",
                         .reads = {number.all()},
                         .writes = {number.all().of(next)},
                         .waits = {{here, rank == 0 ? 1u : 0u}},
                         .signals = {{.event = here, .rank = next}}});
  Megakernel kernel(world, graph, {.workers = 1});
  kernel.run(rounds);
  uint64_t value = 0;
  world.barrier("all have run");
  memory.read(&value, places[rank], sizeof(value));
  world.barrier("all have read");
  return value;
}

TEST(Running, RanksThatAreThreads) {
  run_threads("host", 3, quick(), [](World& world) {
    const uint64_t sum = pass_round(world, 5);
    EXPECT_EQ(world.rank() == 0 ? sum : 30, 5u * (1 + 2 + 3));
  });
}

TEST(Running, RanksThatAreProcesses) {
  run_processes("host", 2, quick(), [](World& world) {
    const uint64_t sum = pass_round(world, 20);
    if (world.rank() == 0 && sum != 20u * (1 + 2)) throw std::runtime_error("a wrong sum");
  });
}

TEST(Running, ARankThatIsKilledEndsTheRunOfItsPeer) {
  const uint16_t port = free_port();
  std::array<int, 2> joined{};
  ASSERT_EQ(pipe(joined.data()), 0);
  RankProcesses processes(2, [&](uint32_t rank) {
    const auto world = World::connect({.port = port, .rank = rank, .size = 2, .local_rank = rank},
                                      "host", quick(std::chrono::seconds(5)));
    if (write(joined[1], "x", 1) != 1) throw std::runtime_error("the pipe is closed");
    try {
      pass_round(*world, 1'000'000'000);
    } catch (const PeerLost&) {
      return;
    } catch (const TaskTimeout&) {
      return;  // It awaited the dead rank's signal before it heard of its death.
    }
    throw std::runtime_error("it went on alone");
  });
  std::array<char, 2> both{};
  for (char& one : both) ASSERT_EQ(read(joined[0], &one, 1), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // Now they run, most likely.
  processes.signal(1, SIGKILL);
  EXPECT_EQ(processes.wait(0), 0);
  for (const int end : joined) close(end);
}

TEST(Running, ARankThatNeverComesIsNamed) {
  auto worlds = World::in_process(2, "host", quick(std::chrono::milliseconds(300)));
  on_every_rank(2, [&](uint32_t rank) {
    Graph graph(kSteps, {.rank = rank, .ranks = 2});
    graph.add<Step>(
        {.value = static_cast<uint64_t*>(worlds[rank]->accelerator().allocate(8)),
         .to = Peer<uint64_t>(static_cast<uint64_t*>(worlds[rank]->accelerator().allocate(8))),
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

TEST(Running, TheTraceTellsWhoHeldUpWhom) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.step({.name = "two"}, adds(2));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2, .trace_records = 100});
  kernel.run(3);
  const Trace trace = kernel.trace();
  ASSERT_EQ(trace.spans.size(), 9u);
  const TraceSummary summary = trace.summary();
  // Each waits for the one before, and so does each iteration for the last.
  EXPECT_EQ(summary.critical_path.size(), 9u);
  EXPECT_THAT(summary.text(trace.spans, trace.tasks), HasSubstr("two"));
  for (const uint64_t cost : trace.measured_costs()) EXPECT_GT(cost, 0u);

  const auto events = nlohmann::json::parse(trace.perfetto())["traceEvents"];
  uint32_t slices = 0, begins = 0, ends = 0;
  for (const auto& event : events) {
    if (event["ph"] == "X" && event["cat"] == "step") ++slices;
    if (event["ph"] == "s") ++begins;
    if (event["ph"] == "f") ++ends;
  }
  EXPECT_EQ(slices, 9u);
  EXPECT_EQ(begins, 6u);
  EXPECT_EQ(ends, 6u);
}

TEST(Running, ATraceKeepsTheNewestTasks) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 1, .trace_records = 3});
  kernel.run(4);
  const Trace trace = kernel.trace();
  ASSERT_EQ(trace.spans.size(), 3u);
  EXPECT_EQ(trace.spans[0].iteration, 2u);
  EXPECT_EQ(trace.spans[2].iteration, 3u);
}

}  // namespace
}  // namespace tokenyard::megakernel
