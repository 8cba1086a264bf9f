// Results of a trace's records: critical paths, costs, and the file for Perfetto.
#include "tokenyard/megakernel/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tokenyard::megakernel {
namespace {

using testing::ElementsAre;

/// Two workers and two iterations: "make" on one, "use" on the other, which awaits the value of the
/// previous iteration.
Trace pipelined() {
  return {
      .rank = 0,
      .workers = 2,
      .tasks = {{.name = "make", .type = "step", .waits = {}},
                {.name = "use", .type = "step", .waits = {{.event = 0, .lag = 1}}}},
      .events = {{.carried = false, .signals = {{.rank = 0, .task = 0}}}},
      .spans = {
          {.worker = 0, .task = 0, .iteration = 0, .taken_ns = 0, .begun_ns = 0, .ended_ns = 50},
          {.worker = 0, .task = 0, .iteration = 1, .taken_ns = 50, .begun_ns = 50, .ended_ns = 90},
          {.worker = 1, .task = 1, .iteration = 0, .taken_ns = 0, .begun_ns = 0, .ended_ns = 10},
          {.worker = 1,
           .task = 1,
           .iteration = 1,
           .taken_ns = 10,
           .begun_ns = 52,
           .ended_ns = 99}}};
}

nlohmann::json events_of(const Trace& trace) {
  return nlohmann::json::parse(trace.perfetto())["traceEvents"];
}

TEST(Trace, AWaitThatLagsLeadsToTheIterationBefore) {
  const Trace trace = pipelined();
  EXPECT_THAT(trace.summary().critical_path, ElementsAre(0, 3));
  uint32_t arrows = 0;
  for (const auto& event : events_of(trace)) {
    if (event["ph"] == "s") {
      EXPECT_DOUBLE_EQ(event["ts"], 0.05);
      ++arrows;
    }
    if (event["ph"] == "f") {
      EXPECT_DOUBLE_EQ(event["ts"], 0.052);
    }
  }
  EXPECT_EQ(arrows, 1u);  // The first iteration's wait has no signal.
}

/// Arrows from all signallers of an event would hide everything else.
TEST(Trace, AnArrowComesFromTheLastSignal) {
  Trace trace = pipelined();
  trace.tasks.push_back({.name = "make more", .type = "step", .waits = {}});
  trace.events[0].signals.push_back({.rank = 0, .task = 2});
  trace.workers = 3;
  trace.spans.push_back(
      {.worker = 2, .task = 2, .iteration = 0, .taken_ns = 0, .begun_ns = 0, .ended_ns = 51});
  std::vector<uint32_t> from;
  for (const auto& event : events_of(trace))
    if (event["ph"] == "s") from.push_back(event["tid"]);
  EXPECT_THAT(from, ElementsAre(2));
}

/// A worker signals first and then records the time.
TEST(Trace, ATaskMayBeginBeforeTheEndOfItsSignalIsNoted) {
  Trace trace = pipelined();
  trace.spans[3].begun_ns = 48;
  EXPECT_THAT(trace.summary().critical_path, ElementsAre(0, 3));
  double from = 0, to = 0;
  for (const auto& event : events_of(trace)) {
    if (event["ph"] == "s") from = event["ts"];
    if (event["ph"] == "f") to = event["ts"];
  }
  EXPECT_LE(from, to);
  EXPECT_DOUBLE_EQ(to, 0.048);
}

TEST(Trace, NamesMayHoldAnything) {
  Trace trace = pipelined();
  trace.tasks[0].name = "a \"task\"\\\n\tof\x01 many";
  const auto events = events_of(trace);
  bool found = false;
  for (const auto& event : events) found |= event["name"] == trace.tasks[0].name;
  EXPECT_TRUE(found);
}

TEST(Trace, CostsAreMeansOfWhatTasksTook) {
  EXPECT_THAT(pipelined().measured_costs(), ElementsAre(45, 28));
}

TEST(Trace, OfNothingIsEmpty) {
  const Trace trace{.rank = 0,
                    .workers = 1,
                    .tasks = {{.name = "a", .type = "b", .waits = {}}},
                    .events = {},
                    .spans = {}};
  EXPECT_TRUE(trace.summary().critical_path.empty());
  EXPECT_THAT(trace.measured_costs(), ElementsAre(0));
  EXPECT_TRUE(nlohmann::json::parse(trace.perfetto()).contains("traceEvents"));
}

}  // namespace
}  // namespace tokenyard::megakernel
