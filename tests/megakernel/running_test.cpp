// Running graphs: iterations, loops, fed runs, traces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "megakernel/counter_graph.hpp"
#include "megakernel/later_run.hpp"
#include "megakernel/step_kernel.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

class Running : public OnDevices {};
INSTANTIATE_ON_DEVICES(Running);

TEST_P(Running, AsManyIterationsAsAskedRunAfterRun) {
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

TEST_P(Running, ByASchedulerThatGivesOutTasks) {
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
  EXPECT_EQ(kernel.run(0), 3u);  // Until the number reaches 50.
  EXPECT_EQ(kernel.finished_iterations(), 5u);
  kernel.start();
  kernel.feed();
  kernel.await(1);
  EXPECT_EQ(*counter.value, 66u);
  EXPECT_EQ(kernel.stop(), 1u);
}

/// One task whose events start many others, each of which adds to its own number.
struct Fan {
  explicit Fan(World& world) : counter(world) {}

  /// Adds `width` tasks that wait for one more event, some of them pinned to a worker.
  void add(uint32_t width, bool pinned) {
    first.signals.push_back({counter.graph.event({.name = "event"})});
    for (uint32_t i = 0; i < width; ++i) {
      numbers.push_back(counter.scrap());
      Step::Args args = adds(1);
      args.value = numbers.back();
      args.to = Peer<uint64_t>(numbers.back());
      TaskOptions options{.name = "one of many", .waits = {{first.signals.back().event}}};
      if (pinned && i % 3 == 0) options.worker = 1;
      counter.graph.add<Step>(args, std::move(options));
    }
  }
  /// Makes runs of these lengths and checks that each task ran once per iteration.
  void check(World& world, const MegakernelOptions& options) {
    counter.step(std::move(first), adds(1));
    counter.close();
    Megakernel kernel(world, counter.graph, options);
    uint64_t all = 0;
    for (const uint32_t iterations : {7u, 1u, 12u}) {
      EXPECT_EQ(kernel.run(iterations), iterations);
      all += iterations;
    }
    for (uint64_t* const number : numbers) {
      uint64_t runs = 0;
      counter.memory.read({&runs, {1}}, {number, {1}});
      EXPECT_EQ(runs, all);
    }
  }

  Counter counter;
  TaskOptions first{.name = "first"};
  std::vector<uint64_t*> numbers;
};

TEST_P(Running, SchedulersWaitForAPlaceInAFullQueue) {
  for (const uint32_t schedulers : {1u, 2u}) {
    const auto world = alone();
    Fan fan(*world);
    fan.add(150, false);
    fan.add(150, true);
    fan.check(*world, {.workers = 3, .schedulers = schedulers, .task_slots = 1});
  }
}

TEST_P(Running, AMassiveLaunchWhoseTasksAllHaveAPlace) {
  const auto world = alone();
  Fan fan(*world);
  fan.add(500, false);  // More than a scheduler holds before their event completes.
  fan.check(*world, {.workers = 3, .schedulers = 1});
}

TEST_P(Running, ASchedulerLooksOutForMoreEventsThanItsBlockHasPlaceFor) {
  // A packet fits only a limited number of signals.
  const auto world = alone();
  Counter counter(*world);
  constexpr uint32_t kRoots = 60, kIterations = 3;
  std::vector<uint64_t*> numbers;
  const auto add = [&](TaskOptions options) {
    numbers.push_back(counter.scrap());
    Step::Args args = adds(1);
    args.value = numbers.back();
    args.to = Peer<uint64_t>(numbers.back());
    counter.graph.add<Step>(args, std::move(options));
  };
  for (uint32_t i = 0; i < kRoots; ++i) {
    const Event a = counter.graph.event({.name = "a"}), b = counter.graph.event({.name = "b"});
    const Event c = counter.graph.event({.name = "c"});
    add({.name = "root", .signals = {{a}, {b}}});
    for (uint32_t j = 0; j < 2; ++j) add({.name = "of a", .waits = {{a}}, .signals = {{c}}});
    add({.name = "of both", .waits = {{a}, {b}}});
    for (uint32_t j = 0; j < 2; ++j) add({.name = "of c", .waits = {{c}}});
  }
  counter.step({.name = "last"}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 3, .schedulers = 1});
  EXPECT_EQ(kernel.run(kIterations), kIterations);
  for (uint64_t* const number : numbers) {
    uint64_t runs = 0;
    counter.memory.read({&runs, {1}}, {number, {1}});
    EXPECT_EQ(runs, kIterations);
  }
}

TEST_P(Running, UntilATaskEndsTheLoop) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "three"}, adds(3));
  counter.end_at = 10;
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  EXPECT_EQ(kernel.run(0), 4u);
  EXPECT_EQ(counter.read(), 12u);
  EXPECT_EQ(kernel.run(7), 1u);  // The number is past the end already.
}

TEST_P(Running, WhenTheHostFeedsIt) {
  const auto world = alone();
  Counter counter(*world);
  auto* const factor = counter.memory.visible(sizeof(uint64_t)).as<uint64_t>();
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
  kernel.start();  // Again, after other runs.
  kernel.feed(2);
  EXPECT_EQ(kernel.stop(), 2u);
  EXPECT_EQ(counter.read(), expected + 2 * *factor);
  kernel.start();  // And left to the destructor.
}

/// The deadline is an iteration's. Once, that of a worker without tasks was the run's.
TEST_P(Running, ARunMayLastLongerThanADeadline) {
  constexpr std::chrono::milliseconds kTimeout{1500};
  for (const uint32_t schedulers : {0u, 1u, 2u}) {
    const auto world = alone(quick(kTimeout));
    Counter counter(*world);
    for (int step = 0; step < 20; ++step) counter.step({.name = "one"}, adds(1));
    counter.close();
    Megakernel kernel(*world, counter.graph, {.workers = 2, .schedulers = schedulers});
    kernel.start();
    for (uint32_t turn = 1; turn <= 3; ++turn) {
      std::this_thread::sleep_for(kTimeout * 2 / 5);
      kernel.feed();
      EXPECT_EQ(kernel.await(turn), turn) << "schedulers: " << schedulers;
    }
    EXPECT_EQ(kernel.stop(), 3u);
    EXPECT_EQ(counter.read(), 60u);
  }
}

TEST_P(Running, WhatWasFedJustBeforeTheStopRuns) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  for (const uint32_t schedulers : {0u, 1u}) {
    Megakernel kernel(*world, counter.graph, {.workers = 1, .schedulers = schedulers});
    for (uint32_t fed = 0; fed < 20; ++fed) {
      kernel.start();
      kernel.feed(fed % 3);
      kernel.feed(fed % 2);
      EXPECT_EQ(kernel.stop(), fed % 3 + fed % 2);
    }
  }
}

TEST(RunNumbers, WrapAfterFourBillionRuns) {
  for (const uint32_t schedulers : {0u, 1u, 2u}) {
    const auto world =
        std::move(World::in_process(1, "host", OnDevices::quick(std::chrono::seconds(5))).front());
    Counter counter(*world);
    counter.step({.name = "one"}, adds(1));
    counter.step({.name = "ten"}, adds(10));
    counter.close();
    Megakernel kernel(*world, counter.graph, {.workers = 2, .schedulers = schedulers});
    begin_after(*world, kernel, UINT32_MAX - 2);
    for (uint64_t run = 1; run <= 6; ++run) {
      EXPECT_EQ(kernel.run(2), 2u);
      EXPECT_EQ(counter.read(), 22 * run) << "schedulers: " << schedulers;
    }
    kernel.start();
    kernel.feed(3);
    EXPECT_EQ(kernel.stop(), 3u);
    EXPECT_EQ(counter.read(), 22 * 6 + 33u);
  }
}

TEST_P(Running, AHostHearsThatTheLoopHasEndedWhileItFeeds) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "three"}, adds(3));
  counter.end_at = 10;
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  kernel.start();
  kernel.feed(9);
  EXPECT_GE(kernel.await(2), 2u);
  EXPECT_EQ(kernel.await(9), 4u);
  EXPECT_EQ(kernel.await(9), 4u);
  EXPECT_EQ(*counter.value, 12u);
  EXPECT_THROW(kernel.feed(), InvalidArgument);
  EXPECT_EQ(kernel.stop(), 4u);
  EXPECT_EQ(kernel.finished_iterations(), 4u);
}

TEST_P(Running, TheTraceTellsWhoHeldUpWhom) {
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
  // Each task waits for the previous one, and each iteration for the previous iteration.
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

TEST_P(Running, ATraceKeepsTheNewestTasks) {
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
