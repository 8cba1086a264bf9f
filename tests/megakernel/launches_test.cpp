// The launchers of a dynamic run's tasks, and the tasks whose end an iteration counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megakernel/compile.hpp"
#include "megakernel/task_kinds.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::ElementsAre;

/// One rank's graph, whose tasks touch no memory, so that only events order them.
struct Sketch {
  explicit Sketch(Graph::Place place = {.rank = 0, .ranks = 1}) : graph(kinds(), place) {}
  Event event(uint32_t dynamic_max = 0) {
    return graph.event({.name = "event", .dynamic_max = dynamic_max});
  }
  void add(std::vector<Wait> waits, std::vector<Signal> signals,
           std::optional<uint32_t> worker = std::nullopt) {
    graph.add<Nothing>(
        {}, {.waits = std::move(waits), .signals = std::move(signals), .worker = worker});
  }
  Graph graph;
};

Compiled compile_dynamic(const std::vector<Graph>& graphs, uint32_t schedulers = 1) {
  const std::vector<Shape> shapes(graphs.size(),
                                  {.workers = 2, .schedulers = schedulers, .task_slots = 4});
  return compile(graphs, shapes);
}
Launch launch_of(const Sketch& sketch, Event event) {
  return compile_dynamic({sketch.graph}).launches.of(0, event.id);
}
constexpr Launch kFirstScheduler{};

TEST(Launches, ATaskFollowsTheOneThatItAloneAwaits) {
  Sketch s;
  const Event a = s.event();
  s.add({}, {{a}});
  s.add({{a}}, {});
  EXPECT_EQ(launch_of(s, a), Launch::follower);
}

TEST(Launches, ASchedulerHearsOfAllOthers) {
  {
    Sketch two_signal;
    const Event a = two_signal.event();
    two_signal.add({}, {{a}});
    two_signal.add({}, {{a}});
    two_signal.add({{a}}, {});
    EXPECT_EQ(launch_of(two_signal, a), kFirstScheduler);
  }
  {
    Sketch two_wait;
    const Event a = two_wait.event();
    two_wait.add({}, {{a}});
    two_wait.add({{a}}, {});
    two_wait.add({{a}}, {});
    EXPECT_EQ(launch_of(two_wait, a), kFirstScheduler);
  }
  {
    Sketch waits_for_two;
    const Event a = waits_for_two.event(), b = waits_for_two.event();
    waits_for_two.add({}, {{a}});
    waits_for_two.add({}, {{b}});
    waits_for_two.add({{a}, {b}}, {});
    EXPECT_EQ(launch_of(waits_for_two, a), kFirstScheduler);
  }
  {
    Sketch has_a_worker;
    const Event a = has_a_worker.event();
    has_a_worker.add({}, {{a}});
    has_a_worker.add({{a}}, {}, 1);
    EXPECT_EQ(launch_of(has_a_worker, a), kFirstScheduler);
  }
  {
    // Tasks with a lagging wait, and the loop, read the counter.
    Sketch looked_at;
    const Event a = looked_at.event(), b = looked_at.event();
    looked_at.add({{a, 1}}, {{a}});
    looked_at.add({{a}}, {{b}});
    looked_at.add({{b}}, {});
    looked_at.graph.loop_on(b);
    EXPECT_EQ(launch_of(looked_at, a), kFirstScheduler);
    EXPECT_EQ(launch_of(looked_at, b), kFirstScheduler);
  }
}

TEST(Launches, AnotherRanksTaskIsNotFollowed) {
  std::vector<Graph> graphs;
  Event a{};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Sketch s({.rank = rank, .ranks = 2});
    a = s.event();
    if (rank == 0)
      s.add({}, {{.event = a, .rank = 1}});
    else
      s.add({{a}}, {});
    s.graph.once();
    graphs.push_back(s.graph);
  }
  EXPECT_EQ(compile_dynamic(graphs).launches.of(1, a.id), kFirstScheduler);
}

TEST(Launches, AnIterationAwaitsTheEndOfWhatNothingFollows) {
  Sketch s;
  const Event a = s.event(), b = s.event(), c = s.event(), of_nobody = s.event();
  const Event of_later = s.event();
  s.add({}, {{a}});          // The next task ends later.
  s.add({{a}}, {{b}, {c}});  // A task that awaits one signal is not ordered after the other.
  s.add({{b}}, {});
  s.add({{c}}, {{of_nobody}});
  s.add({{of_later, 1}}, {{of_later}});  // Awaited in the next iteration only.
  const Compiled compiled = compile_dynamic({s.graph});
  std::vector<bool> counted;
  for (uint32_t task = 0; task < 5; ++task) counted.push_back(compiled.launches.counts(0, task));
  EXPECT_THAT(counted, ElementsAre(false, true, true, true, true));
}

TEST(Launches, ATaskLeadsOnOneOtherOnly) {
  Sketch s;
  const Event a = s.event(), b = s.event();
  s.add({}, {{a}, {b}});
  s.add({{a}}, {});
  s.add({{b}}, {});
  EXPECT_EQ(launch_of(s, a), Launch::follower);
  EXPECT_EQ(launch_of(s, b), kFirstScheduler);
}

TEST(Launches, ASchedulerBeginsToLookOutForAnEventWhenItSeesTheOneBefore) {
  Sketch s;
  const Event a = s.event(), b = s.event(), c = s.event();
  for (uint32_t i = 0; i < 2; ++i) s.add({}, {{a}});
  for (uint32_t i = 0; i < 2; ++i) s.add({{a}}, {{b}});
  for (uint32_t i = 0; i < 2; ++i) s.add({{b}}, {{c}});
  for (uint32_t i = 0; i < 2; ++i) s.add({{c}}, {});
  const std::vector<Watch> watches = compile_dynamic({s.graph}).launches.watches_of(0);
  ASSERT_EQ(watches.size(), 4u);  // The first is that of the iteration's begin.
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(watches[i].opens, i < 3 ? 1u : 0u);
    EXPECT_EQ(watches[i].tasks, 2u);
    EXPECT_EQ(watches[i].tasks_at, 2 * i);
    if (i < 3) {
      EXPECT_EQ(watches[i].opens_at, i + 1);
      EXPECT_EQ(watches[i].opened_tasks_at, 2 * (i + 1));
      EXPECT_EQ(watches[i].opened_tasks, 2u);
    }
    if (i > 0) {
      EXPECT_EQ(watches[i].event, i - 1);
    }
  }
}

TEST(Launches, ASchedulerThatSeesNothingBeforeAnEventLooksOutForItFromTheBegin) {
  Sketch s;
  const Event a = s.event(), b = s.event();
  for (uint32_t i = 0; i < 2; ++i) s.add({}, {{a}});
  for (uint32_t i = 0; i < 2; ++i) s.add({{a}}, {{b}});
  for (uint32_t i = 0; i < 2; ++i) s.add({{b}}, {});
  const std::vector<Watch> watches = compile_dynamic({s.graph}, 2).launches.watches_of(0);
  ASSERT_EQ(watches.size(), 4u);  // Two schedulers' begins, and one event each.
  for (uint32_t scheduler = 0; scheduler < 2; ++scheduler) {
    EXPECT_EQ(watches[scheduler].tasks, 1u);  // They share the tasks of the begin.
    EXPECT_EQ(watches[scheduler].opens, 1u);
    EXPECT_EQ(watches[watches[scheduler].opens_at].event, scheduler);
  }
}

TEST(Launches, EventsAreAnnouncedUnlessAnotherRankOrABodySignalsThem) {
  std::vector<Graph> graphs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Sketch s({.rank = rank, .ranks = 2});
    const Event own = s.event(), of_both = s.event(), counted = s.event(1);
    if (rank == 0) {
      for (uint32_t i = 0; i < 2; ++i)
        s.add({}, {{own}, {of_both}, {.event = counted, .dynamic = true}});
      s.graph.add<Nothing>({}, {.expects = {counted}});
      for (uint32_t i = 0; i < 2; ++i) s.add({{own}, {of_both}, {counted}}, {});
    } else {
      s.add({}, {{.event = of_both, .rank = 0}});
    }
    s.graph.once();
    graphs.push_back(s.graph);
  }
  for (const Watch& watch : compile_dynamic(graphs).launches.watches_of(0))
    EXPECT_EQ(watch.announced, watch.event == 0 ? 1u : 0u) << watch.event;
}

TEST(Launches, TasksAreExpectedInTheOrderOfTheGraph) {
  Sketch s;
  const Event a = s.event(), b = s.event();
  for (uint32_t i = 0; i < 2; ++i) s.add({{b}}, {});
  for (uint32_t i = 0; i < 2; ++i) s.add({{a}}, {{b}});
  s.add({{a}}, {}, 1);  // Pinned, so it does not go through the queue.
  for (uint32_t i = 0; i < 2; ++i) s.add({}, {{a}});
  const Launches launches = compile_dynamic({s.graph}).launches;
  EXPECT_EQ(launches.queued(0), 6u);
  EXPECT_TRUE(launches.pins(0));
  EXPECT_THAT(launches.order_of(0), ElementsAre(5, 6, 2, 3, 0, 1, 4));
}

TEST(Launches, AFollowersPacketIsNamedByTheSignal) {
  Sketch s;
  const Event a = s.event();
  s.add({}, {{a}});
  s.add({{a}}, {});
  const std::vector<Graph> graphs{s.graph};
  const Compiled compiled = compile_dynamic(graphs);
  const Program program = make_program(graphs, 0, {.workers = 2, .schedulers = 1}, compiled);
  const auto& packet = *reinterpret_cast<const Packet*>(program.packets.data());
  const PacketPlace place{packet.follower};
  EXPECT_EQ(place.from(), program.positions[1] * kPacketAlignment);
  EXPECT_EQ(place.bytes(), (program.positions[2] - program.positions[1]) * kPacketAlignment);
  EXPECT_EQ(program.counted, 1u);
}

TEST(Launches, PacketsThatNoPlaceCanTellApartAreRefused) {
  constexpr uint32_t kUnits = kPacketBytes / kPacketAlignment;
  constexpr size_t kMost = PacketPlace::kUnitsEnd / kUnits;
  // The last valid place is still distinct.
  const PacketPlace last = PacketPlace::of((kMost - 1) * kUnits, kMost * kUnits);
  EXPECT_EQ(last.from(), (kMost - 1) * kPacketBytes);
  EXPECT_EQ(last.bytes(), kPacketBytes);
  EXPECT_NO_THROW(check_packet_places(0, kMost, kUnits));
  try {
    check_packet_places(3, kMost + 1, kUnits);
    ADD_FAILURE() << "accepted";
  } catch (const InvalidGraph& error) {
    EXPECT_EQ(error.fault, GraphFault::packet);
    EXPECT_THAT(error.witness,
                ElementsAre("rank 3 has 524289 tasks",
                            "their packets are 1024 bytes apart, the length of the longest",
                            "a dynamic run can address at most 512 MiB of them"));
  }
}

}  // namespace
}  // namespace tokenyard::megakernel
