// One file with the traces of several ranks: invented traces, and those of real runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

#include "megakernel/counter_graph.hpp"
#include "megakernel/invented_traces.hpp"
#include "megakernel/trace/clock_alignment.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// An arrow between ranks: the names of its tasks and their iterations.
struct Arrow {
  uint32_t from_rank, to_rank;
  std::string from, to;
  uint64_t from_iteration, to_iteration;

  auto operator<=>(const Arrow&) const = default;
};

void PrintTo(const Arrow& arrow, std::ostream* out) {
  *out << arrow.from_rank << " '" << arrow.from << "' " << arrow.from_iteration << " -> "
       << arrow.to_rank << " '" << arrow.to << "' " << arrow.to_iteration;
}

/// A parsed file.
class TraceFile {
 public:
  using Json = nlohmann::json;

  explicit TraceFile(const std::vector<Trace>& traces)
      : events_(Json::parse(perfetto(traces))["traceEvents"]) {
    for (const Json& event : events_) {
      if (event["ph"] == "M" && event["name"] == "process_name")
        processes[event["pid"]] = event["args"];
      if (event["ph"] == "M" && event["name"] == "process_labels")
        labels[event["pid"]] = event["args"]["labels"];
      if (event["ph"] == "s") begins_[event["id"]] = event;
      if (event["ph"] == "X") {
        EXPECT_GE(event["ts"], 0.0);
        EXPECT_GE(event["dur"], 0.0);
      }
    }
    for (const Json& event : events_)
      if (event["ph"] == "f") take(begins_.at(event["id"]), event);
  }

  std::map<uint32_t, Json> processes;      ///< by rank: facts on its clock
  std::map<uint32_t, std::string> labels;  ///< by rank
  std::set<Arrow> between_ranks;
  uint32_t within_ranks = 0;  ///< arrows

 private:
  void take(const Json& from, const Json& to) {
    EXPECT_LE(from["ts"], to["ts"]);
    EXPECT_EQ(from["cat"], to["cat"]);
    EXPECT_EQ(from["pid"] == to["pid"], from["cat"] == "event");
    if (from["pid"] == to["pid"]) {
      ++within_ranks;
      return;
    }
    const Json signals = task_at(from), awaits = task_at(to);
    between_ranks.insert({from["pid"], to["pid"], signals["name"], awaits["name"],
                          signals["args"]["iteration"], awaits["args"]["iteration"]});
  }
  /// Returns the task that began last on an arrow's row.
  Json task_at(const Json& arrow) const {
    Json last{{"name", "none"}, {"args", {{"iteration", 0}}}};
    for (const Json& event : events_)
      if (event["ph"] == "X" && event["cat"] != "waiting" && event["pid"] == arrow["pid"] &&
          event["tid"] == arrow["tid"] && event["ts"] <= arrow["ts"])
        last = event;
    return last;
  }

  Json events_;
  std::map<uint64_t, Json> begins_;
};

TEST(TraceOfRanks, HasOneClockAndSaysHowSureItIs) {
  InventedTraces invented({0, 1'000'000});
  invented.tell(0, 1, 1000, 100);
  invented.tell(1, 0, 2000, 100);
  const TraceFile file(invented.traces);
  EXPECT_THAT(file.between_ranks,
              UnorderedElementsAre(Arrow{0, 1, "task 0 of 0", "task 0 of 1", 0, 0},
                                   Arrow{1, 0, "task 1 of 1", "task 1 of 0", 0, 0}));
  ASSERT_EQ(file.processes.size(), 2u);
  EXPECT_EQ(file.processes.at(0)["name"], "rank 0");
  EXPECT_EQ(file.processes.at(0)["clock_moved_us"], 0.0);
  EXPECT_EQ(file.processes.at(1)["name"], "rank 1");
  EXPECT_EQ(file.processes.at(1)["clock_moved_us"], -1000.0);
  EXPECT_EQ(file.processes.at(1)["at_least_us"], -1000.1);
  EXPECT_EQ(file.processes.at(1)["at_most_us"], -999.9);
  EXPECT_EQ(file.labels.at(0), "all times are on this clock");
  EXPECT_EQ(file.labels.at(1),
            "clock shifted by -1000.000 us, the middle of the range that signals allow; at least "
            "-1000.100 us; "
            "at most -999.900 us");
}

TEST(TraceOfRanks, SaysWhereLittleIsKnown) {
  InventedTraces invented({0, 0, 0, 0});
  invented.ran(0, 0, 10);
  invented.tell(0, 1, 1000, 100);  // One direction.
  invented.ran(2, 500, 600);       // No signals.
  const auto early = invented.ran(0, 3000, 3010), late = invented.ran(3, 2900, 2910);
  invented.signal(early, late);  // Two contradictory signals.
  invented.tell(3, 0, 5000, 60);
  const TraceFile file(invented.traces);
  EXPECT_EQ(file.labels.at(1),
            "clock shifted by -0.100 us: signals bound it from one side only; at least -0.100 us");
  EXPECT_EQ(file.labels.at(2),
            "clock shifted by -0.500 us, so that first tasks begin together: no signals bound it");
  EXPECT_THAT(file.labels.at(3), HasSubstr("signals contradict each other by 0.040 us"));
  EXPECT_EQ(file.processes.at(3)["contradiction_us"], 0.04);
}

TEST(TraceOfRanks, OfSeveralSignalsOfARankTheLastToEndIsDrawn) {
  InventedTraces invented({0, 0});
  const auto first = invented.ran(0, 100, 900), second = invented.ran(0, 200, 300);
  const auto awaits = invented.ran(1, 1000, 1100);
  invented.signal(first, awaits);
  invented.traces[1].events[0].signals.push_back({.rank = 0, .task = second.task});
  invented.traces[0].spans[1].worker = invented.traces[0].workers++;
  EXPECT_THAT(TraceFile(invented.traces).between_ranks,
              ElementsAre(Arrow{0, 1, "task 0 of 0", "task 0 of 1", 0, 0}));
}

/// The awaiting task began before its signal was sent.
TEST(TraceOfRanks, WhereBodiesAwaitAnArrowEndsInTheBody) {
  InventedTraces invented({0, 0});
  const auto before = invented.ran(0, 100, 400), signals = invented.ran(0, 500, 900);
  const auto awaits = invented.ran(1, 200, 1000);
  invented.signal(signals, awaits);
  invented.traces[1].events[0].carried = true;
  invented.tell(1, 0, 2000, 0);
  invented.signal(awaits, before);  // Keeps the clocks nearly unshifted.
  invented.traces[0].events.back().carried = true;
  EXPECT_THAT(TraceFile(invented.traces).between_ranks,
              Contains(Arrow{0, 1, "task 1 of 0", "task 0 of 1", 0, 0}));
}

TEST(TraceOfRanks, OfNoneIsAFile) {
  EXPECT_THAT(TraceFile({}).processes, IsEmpty());
}

TEST(TraceOfRanks, OfOneSaysNothingOfClocks) {
  InventedTraces invented({5});
  invented.ran(0, 100, 200);
  const TraceFile file(invented.traces);
  EXPECT_FALSE(file.processes.at(0).contains("clock_moved_us"));
  EXPECT_THAT(file.labels, IsEmpty());
}

// ---- ranks that ran

class TracedRanks : public OnDevices {};
INSTANTIATE_ON_DEVICES(TracedRanks);

/// Parameters of a run.
struct TracedRun {
  uint32_t iterations = 3;
  uint32_t schedulers = 0;
  uint32_t records = 100;
};

/// Each rank sends its number to the next rank, which passes it on; rank 0 takes the number of the
/// previous iteration.
std::vector<Trace> traces_of_round(World& world, const TracedRun& how) {
  const uint32_t rank = world.rank(), next = (rank + 1) % world.size();
  TensorMemory memory(world);
  Graph graph(steps(), {.rank = rank, .ranks = world.size()});
  const Event here = graph.event({.name = "here"});
  const Event taken = graph.event({.name = "taken"});
  const auto add = [&](TaskOptions options) {
    Step::Args args = adds(1);
    args.value = memory.local(sizeof(uint64_t)).as<uint64_t>();
    args.to = Peer<uint64_t>(args.value);
    graph.add<Step>(args, std::move(options));
  };
  add({.name = fmt::format("take {}", rank),
       .waits = {{here, rank == 0 ? 1u : 0u}},
       .signals = {{taken}}});
  add({.name = fmt::format("give {}", rank),
       .waits = {{taken}},
       .signals = {{.event = here, .rank = next}}});
  Megakernel kernel(world, graph,
                    {.workers = 2, .schedulers = how.schedulers, .trace_records = how.records});
  kernel.run(how.iterations);
  auto traces = kernel.traces();
  world.barrier("all have run");  // No memory is freed while other ranks still run.
  return traces;
}

void check_round(const std::vector<Trace>& traces, bool one_clock) {
  ASSERT_EQ(traces.size(), 3u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(traces[rank].rank, rank);
    EXPECT_EQ(traces[rank].spans.size(), 6u);
  }
  const auto shifts = align_clocks(traces);
  for (uint32_t rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(shifts[rank].source, ClockSource::both_sides);
    if (!one_clock) continue;
    EXPECT_LE(shifts[rank].at_least_ns.value(), 0);
    EXPECT_GE(shifts[rank].at_most_ns.value(), 0);
    EXPECT_EQ(shifts[rank].contradiction_ns, 0u);
  }
  const TraceFile file(traces);
  EXPECT_EQ(file.processes.size(), 3u);
  EXPECT_EQ(file.within_ranks, 9u);
  EXPECT_THAT(file.between_ranks,
              UnorderedElementsAre(
                  Arrow{0, 1, "give 0", "take 1", 0, 0}, Arrow{0, 1, "give 0", "take 1", 1, 1},
                  Arrow{0, 1, "give 0", "take 1", 2, 2}, Arrow{1, 2, "give 1", "take 2", 0, 0},
                  Arrow{1, 2, "give 1", "take 2", 1, 1}, Arrow{1, 2, "give 1", "take 2", 2, 2},
                  Arrow{2, 0, "give 2", "take 0", 0, 1}, Arrow{2, 0, "give 2", "take 0", 1, 2}));
}

TEST_P(TracedRanks, AreOneFileWithArrowsBetweenThem) {
  run_threads(GetParam(), 3, quick(),
              [&](World& world) { check_round(traces_of_round(world, {}), on_host()); });
}

TEST_P(TracedRanks, OfDynamicRunsToo) {
  run_threads(GetParam(), 3, quick(), [&](World& world) {
    check_round(traces_of_round(world, {.schedulers = 1}), on_host());
  });
}

TEST_P(TracedRanks, WithoutRecordsNothingIsDrawn) {
  run_threads(GetParam(), 2, quick(), [&](World& world) {
    const TraceFile file(traces_of_round(world, {.records = 0}));
    EXPECT_EQ(file.processes.size(), 2u);
    EXPECT_THAT(file.between_ranks, IsEmpty());
  });
}

/// Processes of one machine share a clock as well.
TEST(TracedProcesses, AreOneFileWithArrowsBetweenThem) {
  run_processes("host", 3, OnDevices::quick(), [](World& world) {
    const auto traces = traces_of_round(world, {});
    check_round(traces, true);
    if (testing::Test::HasFailure()) throw std::runtime_error("see above");
  });
}

/// Only rank 0 knows how often it signals rank 1.
TEST_P(TracedRanks, SignalsThatBodiesSendAreArrowsAndNoBounds) {
  run_threads(GetParam(), 2, quick(), [&](World& world) {
    TensorMemory memory(world);
    Graph graph(steps(), {.rank = world.rank(), .ranks = 2});
    const Event counted = graph.event({.name = "counted", .dynamic_max = 4});
    const auto add = [&](uint32_t promise, TaskOptions options) {
      Step::Args args = adds(1);
      args.value = memory.local(sizeof(uint64_t)).as<uint64_t>();
      args.to = Peer<uint64_t>(args.value);
      args.promised = counted;
      args.promise = args.kept = promise;
      graph.add<Step>(args, std::move(options));
    };
    if (world.rank() == 1) {
      add(2, {.name = "promise",
              .signals = {{.event = counted, .dynamic = true}},
              .expects = {counted}});
      add(0, {.name = "use", .waits = {{counted}}});
    } else {
      add(0, {.name = "may signal", .signals = {{.event = counted, .rank = 1, .dynamic = true}}});
    }
    graph.once();
    Megakernel kernel(world, graph, {.workers = 2, .trace_records = 8});
    kernel.run(1);
    const auto traces = kernel.traces();
    EXPECT_EQ(align_clocks(traces)[1].source, ClockSource::first_task);
    EXPECT_THAT(TraceFile(traces).between_ranks, testing::SizeIs(1));
    world.barrier("all have run");
  });
}

}  // namespace
}  // namespace tokenyard::megakernel
