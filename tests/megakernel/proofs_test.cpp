// Each fault that compile() rejects: the smallest faulty graph next to the nearest valid one, for
// tasks, events and device limits. Accesses of tasks are in access_proofs_test.cpp.
#include "megakernel/sketch.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Proofs, TasksThatAwaitEachOther) {
  Sketch s;
  s.add({.name = "hen", .waits = {{s.a}}, .signals = {{s.b}}});
  s.add({.name = "egg", .waits = {{s.b}}, .signals = {{s.a}}});
  const InvalidGraph error = refused({s.graph});
  EXPECT_EQ(error.fault, GraphFault::cycle);
  EXPECT_EQ(error.witness.size(), 5u);
  EXPECT_EQ(error.witness.front(), error.witness.back());
  EXPECT_THAT(error.witness, testing::Contains("task 'hen' of rank 0"));
  EXPECT_THAT(error.witness, testing::Contains("event 'b' of rank 0"));
}

TEST(Proofs, QueuesThatAwaitEachOther) {
  // Two workers: the first task of each waits for the second task of the other.
  Sketch s;
  s.add({.name = "first of 0", .waits = {{s.a}}});
  s.add({.name = "second of 0", .signals = {{s.b}}});
  s.add({.name = "first of 1", .waits = {{s.b}}});
  s.add({.name = "second of 1", .signals = {{s.a}}});
  const InvalidGraph error = refused({s.graph}, Placement{{{{0, 1}, {2, 3}}}});
  EXPECT_EQ(error.fault, GraphFault::cycle);
  EXPECT_THAT(error.witness, testing::Contains("task 'second of 1' of rank 0"));
  compile_all({s.graph}, Placement{{{{1, 0}, {3, 2}}}});
  compile_all({s.graph});
}

TEST(Proofs, RanksThatAwaitEachOther) {
  std::vector<Graph> graphs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Graph graph(kinds(), {.rank = rank, .ranks = 2});
    const Event from_peer = graph.event({.name = "from peer"});
    graph.add<Nothing>(
        {}, {.name = "exchange", .waits = {{from_peer}}, .signals = {{from_peer, 1 - rank}}});
    graphs.push_back(std::move(graph));
  }
  const InvalidGraph error = refused(graphs);
  EXPECT_EQ(error.fault, GraphFault::cycle);
  EXPECT_THAT(error.witness, testing::Contains("task 'exchange' of rank 0"));
  EXPECT_THAT(error.witness, testing::Contains("task 'exchange' of rank 1"));
}

TEST(Proofs, ADeclaredCountThatIsNotMet) {
  Graph graph(kinds(), {});
  const Event three = graph.event({.name = "three", .count = 3});
  graph.add<Nothing>({}, {.name = "once", .signals = {{three}}});
  graph.add<Nothing>({}, {.name = "waits", .waits = {{three}}});
  const InvalidGraph error = refused({graph});
  EXPECT_EQ(error.fault, GraphFault::trigger_count);
  EXPECT_THAT(error.witness,
              ElementsAre("event 'three' of rank 0", "declares 3 signals and gets 1"));
}

TEST(Proofs, ADynamicEventThatNobodyCounts) {
  Graph graph(kinds(), {});
  const Event rows = graph.event({.name = "rows", .dynamic_max = 8});
  graph.add<Nothing>({}, {.name = "send", .signals = {{.event = rows, .dynamic = true}}});
  graph.add<Nothing>({}, {.name = "receive", .waits = {{rows}}});
  EXPECT_EQ(refused({graph}).fault, GraphFault::trigger_count);
  graph.add<Nothing>({}, {.name = "count", .expects = {rows}});
  graph.once();
  compile_all({graph});
  graph.add<Nothing>({}, {.name = "count again", .expects = {rows}});
  EXPECT_EQ(refused({graph}).fault, GraphFault::trigger_count);
}

TEST(Proofs, ANumberForAnEventThatHasNone) {
  Sketch s;
  s.add({.name = "count", .signals = {{s.a}}, .expects = {s.a}});
  EXPECT_EQ(refused({s.graph}).fault, GraphFault::trigger_count);
}

TEST(Proofs, SignalsWithoutNumberToAnEventThatHasOne) {
  Sketch s;
  s.add({.name = "send", .signals = {{s.a}, {.event = s.a, .dynamic = true}}});
  s.add({.name = "receive", .waits = {{s.a}}});
  const InvalidGraph error = refused({s.graph});
  EXPECT_EQ(error.fault, GraphFault::trigger_count);
  EXPECT_THAT(error.witness,
              ElementsAre("task 'send' of rank 0 signals a number of times known at run time",
                          "event 'a' of rank 0", "whose count is static"));
}

TEST(Proofs, MoreSignalsThanAPacketCounts) {
  Sketch s;
  s.add({.name = "many", .signals = {{.event = s.a, .count = 65535}}});
  EXPECT_THROW(s.add({.name = "too many", .signals = {{.event = s.a, .count = 65536}}}),
               InvalidArgument);
  EXPECT_THROW(s.graph.event({.name = "too often", .dynamic_max = UINT32_MAX}), InvalidArgument);
  EXPECT_THROW(s.graph.set_cost({1}, 5), InvalidArgument);
}

TEST(Proofs, SignalsThatRunAhead) {
  // Two tasks signal one event; the fast one could signal twice before the slow one signals once.
  Sketch s;
  s.add({.name = "slow", .signals = {{s.a}}, .worker = 0});
  s.add({.name = "quick", .signals = {{s.a}}, .worker = 1});
  s.add({.name = "waits", .waits = {{s.a}}, .signals = {{s.b}}, .worker = 0});
  const InvalidGraph error = refused({s.graph});
  EXPECT_EQ(error.fault, GraphFault::runs_ahead);
  EXPECT_EQ(error.witness.front(), "task 'quick' of rank 0 in the next iteration");
  s.graph.loop_on(s.b);
  compile_all({s.graph});
}

TEST(Proofs, AWaitThatLagsHoldsBackTheNextIteration) {
  Sketch s;
  s.add({.name = "slow", .signals = {{s.a}}, .worker = 0});
  s.add({.name = "quick", .waits = {{s.b, 1}}, .signals = {{s.a}}, .worker = 1});
  s.add({.name = "waits", .waits = {{s.a}}, .signals = {{s.b}}, .worker = 0});
  compile_all({s.graph});
}

TEST(Proofs, AnEventThatNobodySignals) {
  Sketch s;
  s.add({.name = "hopes", .waits = {{s.a}}});
  const InvalidGraph error = refused({s.graph});
  EXPECT_EQ(error.fault, GraphFault::unreachable);
  EXPECT_THAT(error.witness, ElementsAre("task 'hopes' of rank 0", "awaits event 'a' of rank 0",
                                         "which no task signals"));
}

TEST(Proofs, RanksThatDeclareDifferentEvents) {
  std::vector<Graph> graphs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Graph graph(kinds(), {.rank = rank, .ranks = 2});
    graph.event({.name = rank == 0 ? "up" : "down"});
    graphs.push_back(std::move(graph));
  }
  const InvalidGraph error = refused(graphs);
  EXPECT_EQ(error.fault, GraphFault::tables_differ);
  EXPECT_THAT(error.what(), HasSubstr("'up'"));
  EXPECT_THAT(error.what(), HasSubstr("'down'"));
}

TEST(Proofs, AGraphMadeForOtherRanks) {
  EXPECT_EQ(refused({Graph(kinds(), {.rank = 0, .ranks = 4})}).fault, GraphFault::tables_differ);
}

TEST(Proofs, MoreThanTheDeviceHas) {
  const Capacity small{.multiprocessors = 2, .shared_bytes = 64 << 10};
  Graph graph(kinds(), {});
  graph.add<Greedy>({}, {.name = "glutton"});
  const std::vector<Graph> graphs{graph};
  const auto check = [&](const Shape& shape) {
    const Compiled compiled = compile(graphs, std::vector{shape});
    check_capacity(make_program(graphs, 0, shape, compiled), shape, graph, small);
  };
  const auto fault = [&](const Shape& shape) {
    try {
      check(shape);
    } catch (const InvalidGraph& error) {
      return error;
    }
    throw std::logic_error("accepted");
  };
  const InvalidGraph memory = fault(kTwoWorkers);
  EXPECT_EQ(memory.fault, GraphFault::shared_memory);
  EXPECT_EQ(memory.witness.front(), "task 'glutton' of rank 0 needs 1048576 bytes of scratch");
  EXPECT_EQ(fault({.workers = 3, .compute_warps = 1}).fault, GraphFault::co_residency);
}

TEST(Proofs, MoreLoadedAheadThanABlockHas) {
  static constexpr std::array<TaskType, 1> kTypes = {TaskType{.name = Nothing::kName,
                                                              .args_bytes = sizeof(Nothing::Args),
                                                              .scratch_bytes = 0,
                                                              .streams = false,
                                                              .loads_ahead = true,
                                                              .fields = {}}};
  const Capacity capacity{.multiprocessors = 2, .shared_bytes = 64 << 10};
  const auto check = [&](uint32_t ahead_bytes) {
    Graph graph({.kernel = nullptr, .types = kTypes}, {});
    graph.add<Nothing>({}, {.name = "hoarder", .ahead_bytes = ahead_bytes});
    const std::vector<Graph> graphs{graph};
    check_capacity(make_program(graphs, 0, kTwoWorkers, compile_all(graphs)), kTwoWorkers, graph,
                   capacity);
  };
  check(32 << 10);
  for (const uint32_t bytes : {64u << 10, UINT32_MAX - 64}) {  // The latter rounds up to 0.
    try {
      check(bytes);
      FAIL() << bytes << " bytes are accepted";
    } catch (const InvalidGraph& error) {
      EXPECT_EQ(error.fault, GraphFault::shared_memory);
      EXPECT_EQ(error.witness.front(),
                "task 'hoarder' of rank 0 loads " + std::to_string(bytes) + " bytes ahead");
    }
  }
}

TEST(Proofs, MoreEventsThanASchedulerCanLookOutFor) {
  Sketch s;
  s.add({.name = "first", .signals = {{s.a}}});
  s.add({.name = "second", .waits = {{s.a}}, .signals = {{s.b}}});
  s.add({.name = "beside it", .waits = {{s.a}}});
  s.add({.name = "third", .waits = {{s.b}}});
  s.add({.name = "another", .waits = {{s.b}}});
  Shape shape{.workers = 2, .compute_warps = 1, .schedulers = 1, .task_slots = 1};
  compile_all({s.graph}, {}, shape);
  shape.event_slots = 1;
  const InvalidGraph error = refused({s.graph}, {}, shape);
  EXPECT_EQ(error.fault, GraphFault::queue_capacity);
  EXPECT_EQ(error.witness.front(), "a scheduler of rank 0 serves 2 events");
  EXPECT_THAT(error.fix, HasSubstr("at least 2"));
}

TEST(Proofs, SchedulersForAKernelThatHasNoCodeForThem) {
  TaskSet unscheduled = kinds();
  unscheduled.scheduled = false;
  const Graph graph(unscheduled, {});
  Shape shape = kTwoWorkers;
  compile_all({graph}, {}, shape);
  shape.schedulers = 1;
  shape.task_slots = 1;
  const InvalidGraph error = refused({graph}, {}, shape);
  EXPECT_EQ(error.fault, GraphFault::tables_differ);
  EXPECT_THAT(error.fix, HasSubstr("no schedulers"));
}

TEST(Proofs, ATaskWithTooManyWaits) {
  Graph graph(kinds(), {});
  TaskOptions joins{.name = "joins"};
  for (uint32_t i = 0; i < 80; ++i) {
    const Event event = graph.event({});
    graph.add<Nothing>({}, {.signals = {{event}}});
    joins.waits.push_back({event});
  }
  graph.add<Nothing>({}, std::move(joins));
  const std::vector<Graph> graphs{graph};
  const Compiled compiled = compile_all(graphs);
  try {
    make_program(graphs, 0, kTwoWorkers, compiled);
    FAIL() << "accepted";
  } catch (const InvalidGraph& error) {
    EXPECT_EQ(error.fault, GraphFault::packet);
    EXPECT_THAT(error.what(), HasSubstr("'joins' of rank 0 -> has 80 waits"));
  }
}

TEST(Placement, LongWaysGoFirstToTheWorkerThatIsFree) {
  // A long chain and three short tasks: the chain keeps one worker, the others share the rest.
  Sketch s;
  s.graph.once();
  for (uint32_t i = 0; i < 3; ++i) s.add({.name = "short", .cost_ns = 1000});
  s.add({.name = "chain 1", .signals = {{s.a}}, .cost_ns = 2000});
  s.add({.name = "chain 2", .waits = {{s.a}}, .cost_ns = 2000});
  const Compiled compiled = compile_all({s.graph});
  EXPECT_THAT(compiled.placement.queues[0], ElementsAre(ElementsAre(3, 4), ElementsAre(0, 1, 2)));
}

TEST(Placement, GoesByCostsThatWereMeasured) {
  Sketch s;
  s.graph.once();
  for (uint32_t i = 0; i < 3; ++i) s.add({.name = "thought alike", .cost_ns = 1000});
  s.graph.set_cost({2}, 5000);
  EXPECT_THAT(compile_all({s.graph}).placement.queues[0],
              ElementsAre(ElementsAre(2), ElementsAre(0, 1)));
}

TEST(Placement, KeepsToTheWorkerThatATaskNames) {
  Sketch s;
  s.add({.name = "anywhere"});
  s.add({.name = "there", .worker = 1});
  EXPECT_THAT(compile_all({s.graph}).placement.queues[0],
              ElementsAre(ElementsAre(0), ElementsAre(1)));
  s.add({.name = "nowhere", .worker = 2});
  EXPECT_THROW(compile_all({s.graph}), InvalidArgument);
}

}  // namespace
}  // namespace tokenyard::megakernel
