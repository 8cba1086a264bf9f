// Failed runs, and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/refused.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/counter_graph.hpp"
#include "megakernel/device_tables.hpp"
#include "megakernel/hold_kernel_body.hpp"
#include "megakernel/look_kernel_body.hpp"
#include "megakernel/stall_report.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::Each;
using testing::HasSubstr;

/// On a GPU the deadlines of both may pass at once.
TEST(StallReport, ATaskIsTheCauseAndNotWhoeverAwaitsTheLoop) {
  const StallRecord loop{.what = Stalled::loop};
  const StallRecord task{.what = Stalled::event, .task = 7, .need = 8, .have = 6};
  const StallRecord next{.what = Stalled::packet};
  const StallRecord records[] = {loop, next, task};
  ASSERT_NE(cause_of(records), nullptr);
  EXPECT_EQ(cause_of(records)->task, 7u);
  EXPECT_EQ(cause_of(std::span(records).first(2)), nullptr);
}

TEST(RefusedLaunch, FreesItsEvents) {
  const auto all = test::recording_worlds(1, OnDevices::quick());
  World& world = *all.front();
  test::RecordingAccelerator& accelerator = test::recording_accelerator(world);
  const size_t before = accelerator.events();
  {
    Counter counter(world);
    counter.step({.name = "add"}, adds(1));
    counter.close();
    Megakernel kernel(world, counter.graph, {.workers = 1});
    accelerator.refuse_next_launch();
    EXPECT_THROW(kernel.run(1), InvalidArgument);
  }
  EXPECT_EQ(accelerator.events(), before);
}

class RunTrouble : public OnDevices {};
INSTANTIATE_ON_DEVICES(RunTrouble);

TEST_P(RunTrouble, ASchedulerNamesTheTaskThatCannotBegin) {
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
    EXPECT_THAT(error.dump, HasSubstr("has 4 of 5"));
  }
}

TEST_P(RunTrouble, ATaskThatCannotGoOnIsNamedWithWhatItAwaits) {
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
    EXPECT_EQ(error.facts.expected, 9u);
    EXPECT_EQ(error.facts.seen,
              7u);  // Dynamic triggers of nine, less the five promised, plus three signals.
    EXPECT_THAT(error.dump, HasSubstr("rank 0 worker 0: "));
    EXPECT_THAT(error.dump, HasSubstr("rank 0 worker 1: "));
  }
  EXPECT_EQ(kernel.finished_iterations(), 0u);
  EXPECT_EQ(counter.read(), 1u);
  EXPECT_THROW(kernel.run(1), TaskTimeout);  // Counters are inconsistent.
}

/// Regression: with the largest possible count, all signals came from other tasks, so the event
/// completed before the counting task had run, and the next task missed its results.
TEST_P(RunTrouble, AnEventIsNotCompleteBeforeTheTaskThatCountsIt) {
  for (const uint32_t schedulers : {0u, 1u}) {
    const auto world = alone(quick(std::chrono::milliseconds(200)));
    Counter counter(*world);
    const Event never = counter.graph.event({.name = "never", .dynamic_max = 2});
    const Event rows = counter.graph.event({.name = "rows", .dynamic_max = 2});
    const auto add = [&](TaskOptions options, Event event, uint32_t promise, uint32_t kept) {
      Step::Args args = adds(0);
      args.value = counter.scrap();
      args.to = Peer<uint64_t>(counter.scrap());
      args.promised = event;
      args.promise = promise;
      args.kept = kept;
      counter.graph.add<Step>(args, std::move(options));
    };
    add({.name = "breaks",
         .signals = {{.event = never, .dynamic = true}},
         .expects = {never},
         .worker = 0},
        never, 2, 1);
    add({.name = "counts", .waits = {{never}}, .expects = {rows}, .worker = 0}, rows, 2, 0);
    add({.name = "sends", .signals = {{.event = rows, .dynamic = true}}, .worker = 1}, rows, 0, 2);
    counter.step({.name = "receives", .waits = {{rows}}, .worker = 1}, adds(1));
    counter.close();
    Megakernel kernel(*world, counter.graph, {.workers = 2, .schedulers = schedulers});
    EXPECT_THROW(kernel.run(1), TaskTimeout);
    EXPECT_EQ(counter.read(), 0u) << "schedulers: " << schedulers;
  }
}

TEST_P(RunTrouble, SchedulersAndWhomTheyServeHaveABound) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  const auto refused_for = [&](const MegakernelOptions& options) {
    return test::refused([&] { const Megakernel kernel(*world, counter.graph, options); });
  };
  EXPECT_EQ(refused_for({.workers = 2, .schedulers = kSchedulersMax + 1}), "schedulers");
  EXPECT_EQ(refused_for({.workers = kScheduledMax + 1, .schedulers = 1}), "workers");
  EXPECT_EQ(refused_for({.workers = 2, .schedulers = 1, .task_slots = kTaskSlotsMax}), "nothing");
  EXPECT_EQ(refused_for({.workers = 2, .schedulers = 1, .task_slots = kTaskSlotsMax + 1}),
            "task_slots");
}

TEST_P(RunTrouble, ANumberBeyondItsBoundIsRefused) {
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

TEST_P(RunTrouble, CancelEndsARunThatWouldNotEnd) {
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

/// The worker waits for nothing, not even for the host, which has allowed all iterations at once.
TEST_P(RunTrouble, CancelEndsAWorkerWithoutTasks) {
  const auto world = alone();
  TensorMemory memory(*world);
  Graph graph(steps(), {});
  Step::Args args = adds(1);
  args.value = memory.local(sizeof(uint64_t)).as<uint64_t>();
  args.to = Peer<uint64_t>(args.value);
  graph.add<Step>(args, {.name = "one", .worker = 0});
  Megakernel kernel(*world, graph, {.workers = 2});
  kernel.start();
  kernel.feed(1'000'000'000);
  kernel.await(3);
  world->cancel();
  EXPECT_THROW(kernel.stop(), Cancelled);
}

/// Host and kernel count fed iterations in 31 bits. Regression: beyond them no thread saw a turn,
/// and all waited for one, ignoring the abort flag.
TEST_P(RunTrouble, MoreThanCanBeCountedIsNotFed) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  const auto refused = [&](uint32_t iterations) {
    try {
      kernel.feed(iterations);
    } catch (const InvalidArgument& error) {
      return fmt::format("{}: {}, not {}", error.argument, error.expected, error.seen);
    }
    return std::string("nothing");
  };
  kernel.start();
  EXPECT_EQ(refused(1u << 31),
            "iterations: at most 2147483647 in addition to the 0 fed, not 2147483648");
  kernel.feed(INT32_MAX);
  EXPECT_EQ(refused(1), "iterations: at most 0 in addition to the 2147483647 fed, not 1");
  EXPECT_EQ(refused(UINT32_MAX),
            "iterations: at most 0 in addition to the 2147483647 fed, not 4294967295");
  EXPECT_GE(kernel.await(3), 3u);
  world->cancel();
  EXPECT_THROW(kernel.stop(), Cancelled);
}

TEST_P(RunTrouble, EveryBlockHearsOfACancelThatOneHasHeard) {
  const auto world = alone();
  Accelerator& accelerator = accelerator_of(*world);
  accelerator.prepare(look_kernel.entry);
  const ErrorRecord cell(accelerator, abort_flag_of(*world));
  constexpr uint32_t kBlocks = 3;
  const DeviceMemory answers(accelerator, kBlocks * sizeof(uint32_t), DeviceMemory::Kind::shared);
  const DeviceMemory workspace(accelerator, sizeof(Workspace), DeviceMemory::Kind::device);
  const auto look = [&](uint64_t iteration) {
    LookParams params{.run = {}, .iteration = iteration, .cancelled = answers.as<uint32_t>()};
    params.run.workspace = workspace.as<Workspace>();
    params.run.wait_context = cell.wait_context(world->timeout());
    launch(accelerator, look_kernel, {.blocks = kBlocks, .warps = 1}, {}, params);
    await_stream(*world, {}, "a look");
    return std::vector<uint32_t>(params.cancelled, params.cancelled + kBlocks);
  };
  EXPECT_THAT(look(64), Each(0u));
  abort_flag_of(*world).cancel();
  EXPECT_THAT(look(65), Each(0u));  // Not at every iteration.
  EXPECT_EQ(look(64)[0], 1u);
  EXPECT_THAT(look(64), Each(1u));
}

TEST_P(RunTrouble, WhatCannotBeRunIsRefused) {
  const auto world = alone();
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  EXPECT_THROW(Megakernel(*world, counter.graph, {.workers = 1000}), InvalidGraph);
  EXPECT_THROW(Megakernel(*world, counter.graph, {.compute_warps = 99}), InvalidArgument);
  EXPECT_THROW(Megakernel(*world, counter.graph, {.ring_units = 99}), InvalidArgument);
  EXPECT_THROW(Megakernel(*world, counter.graph, {.unit_bytes = 1u << 31}), InvalidArgument);
  EXPECT_THROW(Megakernel(*world, Graph(steps(), {.rank = 0, .ranks = 2})), InvalidGraph);
  Graph straight(steps(), {});
  straight.add<Step>(adds(1), {});
  straight.once();
  Megakernel once(*world, straight);
  EXPECT_THROW(once.run(2), InvalidArgument);
  EXPECT_THROW(once.start(), InvalidArgument);
}

TEST_P(RunTrouble, AKernelThatCannotStartBesideAnotherIsNamed) {
  if (on_host()) GTEST_SKIP() << "a host's kernels start when they are launched";
  const auto world = alone(quick(std::chrono::milliseconds(300)));
  Accelerator& accelerator = accelerator_of(*world);
  accelerator.prepare(hold_kernel.entry);
  Counter counter(*world);
  counter.step({.name = "one"}, adds(1));
  counter.close();
  Megakernel kernel(*world, counter.graph, {.workers = 2});
  const ErrorRecord cell(accelerator, abort_flag_of(*world));
  auto* const words = static_cast<uint32_t*>(accelerator.allocate_shared(2 * sizeof(uint32_t)));
  const Stream stream = accelerator.make_stream();
  const Capacity capacity = accelerator.capacity();
  launch(accelerator, hold_kernel,
         {.blocks = capacity.multiprocessors,
          .warps = 1,
          .extra_shared_bytes = capacity.shared_bytes - 1024,
          .cooperative = false},
         stream, {words, words + 1, cell.wait_context(std::chrono::seconds(10))});
  const tokenyard::Event held = accelerator.record(stream);
  ASSERT_TRUE(accelerator.wait_until(accelerator.now() + std::chrono::seconds(5),
                                     [&] { return accelerator.read_flag(words + 1) == 1; }));
  try {
    kernel.run(1);
    ADD_FAILURE() << "it ran on multiprocessors that another kernel held";
  } catch (const PeerTimeout& error) {
    EXPECT_THAT(error.facts.phase, HasSubstr("the kernel's start"));
    EXPECT_THAT(error.facts.phase, HasSubstr("use fewer workers"));
  }
  accelerator.write_flag(words, 1);
  EXPECT_TRUE(accelerator.wait_until(accelerator.now() + std::chrono::seconds(5),
                                     [&] { return accelerator.done(held); }));
  accelerator.free_event(held);
  accelerator.free_stream(stream);
}

}  // namespace
}  // namespace tokenyard::megakernel
