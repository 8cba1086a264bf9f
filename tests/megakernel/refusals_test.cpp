// Further faults that compile() rejects: ranks that do not match, and graphs that need a static
// placement. Each is next to the nearest valid graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>

#include "megakernel/compile.hpp"
#include "megakernel/task_kinds.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::Contains;
using testing::HasSubstr;

const Shape kStatic{.workers = 2, .compute_warps = 1};
const Shape kScheduled{.workers = 2, .compute_warps = 1, .schedulers = 1, .task_slots = 2};

/// Returns the error, or nothing if the graph is accepted.
std::optional<InvalidGraph> refusal(const std::vector<Graph>& graphs,
                                    const std::vector<Shape>& shapes) {
  try {
    compile(graphs, shapes);
  } catch (const InvalidGraph& error) {
    return error;
  }
  return std::nullopt;
}

/// Returns two ranks' graphs, of which `change` alters the second.
std::optional<InvalidGraph> refusal_of_ranks(const std::function<void(Graph&)>& change,
                                             const TaskSet& of_second = kinds()) {
  std::vector<Graph> graphs{Graph(kinds(), {.rank = 0, .ranks = 2}),
                            Graph(of_second, {.rank = 1, .ranks = 2})};
  for (Graph& graph : graphs) {
    graph.tensor({.name = "x", .bytes = 64});
    graph.add<Nothing>({}, {.name = "work", .signals = {{graph.event({.name = "end"})}}});
  }
  change(graphs[1]);
  return refusal(graphs, {kStatic, kStatic});
}

TEST(Refusals, RanksThatDeclareDifferentTensors) {
  EXPECT_FALSE(refusal_of_ranks([](Graph&) {}));
  const auto error =
      refusal_of_ranks([](Graph& graph) { graph.tensor({.name = "y", .bytes = 32}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::tables_differ);
  EXPECT_THAT(error->witness, Contains(HasSubstr("of rank 1: 'y' of 32 bytes")));
}

/// Proofs and packets of all ranks depend on these tables.
TEST(Refusals, RanksThatDisagreeOnWordsOrOnCarriedEvents) {
  const auto of = [](bool words, bool carried) {
    std::vector<Graph> graphs;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Graph graph(kinds(), {.rank = rank, .ranks = 2});
      graph.tensor({.name = "x", .bytes = 64, .words = words && rank == 1});
      graph.event({.name = "come", .carried = carried && rank == 1});
      graphs.push_back(std::move(graph));
    }
    return refusal(graphs, {kStatic, kStatic});
  };
  EXPECT_FALSE(of(false, false));
  const auto words = of(true, false), carried = of(false, true);
  ASSERT_TRUE(words);
  ASSERT_TRUE(carried);
  EXPECT_EQ(words->fault, GraphFault::tables_differ);
  EXPECT_THAT(words->witness, Contains("of rank 1: 'x' of 64 bytes, all words"));
  EXPECT_EQ(carried->fault, GraphFault::tables_differ);
  EXPECT_THAT(carried->witness, Contains(HasSubstr("carried by the data")));
}

TEST(Refusals, RanksOfWhichOneRunsOneIteration) {
  const auto error = refusal_of_ranks([](Graph& graph) { graph.once(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::tables_differ);
  EXPECT_THAT(error->witness, Contains("of rank 1: one a run"));
}

TEST(Refusals, RanksOfWhichOneHasALoop) {
  const auto error = refusal_of_ranks([](Graph& graph) { graph.loop_on({0}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::tables_differ);
}

TEST(Refusals, RanksWhoseKernelsHaveDifferentTasks) {
  static constexpr std::array<TaskType, 1> kFewer = {TaskType{.name = Nothing::kName,
                                                              .args_bytes = sizeof(Nothing::Args),
                                                              .scratch_bytes = 0,
                                                              .streams = false,
                                                              .loads_ahead = false,
                                                              .fields = {}}};
  const auto error = refusal_of_ranks([](Graph&) {}, {.kernel = nullptr, .types = kFewer});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::tables_differ);
  EXPECT_THAT(error->witness, Contains(HasSubstr("types of rank 0")));
}

TEST(Refusals, RanksWithSchedulersAndWithout) {
  const std::vector<Graph> graphs{Graph(kinds(), {.rank = 0, .ranks = 2}),
                                  Graph(kinds(), {.rank = 1, .ranks = 2})};
  EXPECT_FALSE(refusal(graphs, {kScheduled, kScheduled}));
  const auto error = refusal(graphs, {kScheduled, kStatic});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::tables_differ);
  EXPECT_THAT(error->fix, HasSubstr("schedulers"));
}

TEST(Refusals, ALoopWhoseEventNobodySignals) {
  Graph graph(kinds(), {});
  const Event end = graph.event({.name = "end"});
  graph.loop_on(end);
  graph.add<Nothing>({}, {.name = "work"});
  const auto error = refusal({graph}, {kStatic});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::unreachable);
  EXPECT_THAT(error->witness, Contains("the loop of rank 0"));
  graph.add<Nothing>({}, {.name = "ends", .signals = {{end}}});
  EXPECT_FALSE(refusal({graph}, {kStatic}));
}

/// Otherwise an iteration could only end by its deadline.
TEST(Refusals, ALoopWhoseEventHasNoCounter) {
  Graph graph(kinds(), {});
  const Event end = graph.event({.name = "end", .carried = true});
  graph.loop_on(end);
  graph.add<Nothing>({}, {.name = "ends", .signals = {{end}}});
  const auto error = refusal({graph}, {kStatic});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::unreachable);
  EXPECT_THAT(error->witness, Contains(HasSubstr("carried by data")));
}

/// Returns both ranks' graphs; rank 1's task signals rank 0's event.
std::vector<Graph> pushed(const EventOptions& options, bool held_back) {
  std::vector<Graph> graphs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Graph graph(kinds(), {.rank = rank, .ranks = 2});
    const Event come = graph.event(options);
    const Event taken = graph.event({.name = "taken"});
    const bool dynamic = options.dynamic_max > 0;
    if (rank == 0) {
      TaskOptions take{.name = "take", .waits = {{come}}, .signals = {{taken, 0}, {taken, 1}}};
      graph.add<Nothing>({}, std::move(take));
      if (dynamic)
        graph.add<Nothing>({}, {.name = "count", .waits = {{taken, 1}}, .expects = {come}});
    } else {
      TaskOptions push{.name = "push", .signals = {{.event = come, .rank = 0, .dynamic = dynamic}}};
      if (held_back) push.waits = {{taken, 1}};
      graph.add<Nothing>({}, std::move(push));
    }
    graphs.push_back(std::move(graph));
  }
  return graphs;
}

/// A dynamic run counts arrivals per task, so a signal of the next iteration must not come before
/// the event's tasks have run.
TEST(Refusals, APeerWhoseNextSignalMayComeTooEarlyForSchedulers) {
  const auto error = refusal(pushed({.name = "come"}, false), {kScheduled, kScheduled});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::runs_ahead);
  EXPECT_THAT(error->witness.front(), HasSubstr("task 'push' of rank 1"));
  EXPECT_FALSE(refusal(pushed({.name = "come"}, true), {kScheduled, kScheduled}));
  EXPECT_FALSE(refusal(pushed({.name = "come"}, false), {kStatic, kStatic}));
}

TEST(Refusals, ADynamicEventOfAnotherRankWithSchedulers) {
  const auto graphs = pushed({.name = "come", .dynamic_max = 3}, true);
  const auto error = refusal(graphs, {kScheduled, kScheduled});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->fault, GraphFault::trigger_count);
  EXPECT_THAT(error->witness, Contains(HasSubstr("signals a dynamic event of rank 0")));
}

}  // namespace
}  // namespace tokenyard::megakernel
