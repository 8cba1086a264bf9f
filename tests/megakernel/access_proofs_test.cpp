// Order of reads and writes: for each fault the smallest graph that compile() rejects, next to the
// nearest valid one.
#include "megakernel/sketch.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

TEST(AccessProofs, BytesThatNobodyWrote) {
  Sketch s;
  s.add({.name = "half", .writes = {s.x.part(0, 32)}, .signals = {{s.a}}});
  s.add({.name = "all", .reads = {s.x.all()}, .waits = {{s.a}}, .signals = {{s.b}}});
  s.graph.once();
  const InvalidGraph error = refused({s.graph});
  EXPECT_EQ(error.fault, GraphFault::no_producer);
  EXPECT_THAT(error.witness[1], HasSubstr("bytes [32, 64) of tensor 'x'"));

  Graph given(kinds(), {});
  const Tensor weights = given.tensor({.name = "w", .bytes = 64, .given = Given::always});
  given.add<Nothing>({}, {.name = "reads", .reads = {weights.all()}});
  compile_all({given});
}

TEST(AccessProofs, AccessesWithoutOrder) {
  const auto fault = [](std::vector<Region> first_reads, std::vector<Region> first_writes,
                        std::vector<Region> then_reads, std::vector<Region> then_writes) {
    Graph graph(kinds(), {});
    graph.tensor({.name = "x", .bytes = 64, .given = Given::always});
    graph.once();
    graph.add<Nothing>({}, {.name = "first",
                            .reads = std::move(first_reads),
                            .writes = std::move(first_writes),
                            .worker = 0});
    graph.add<Nothing>({}, {.name = "then",
                            .reads = std::move(then_reads),
                            .writes = std::move(then_writes),
                            .worker = 1});
    return refused({graph});
  };
  const Tensor x{0, 64};
  EXPECT_EQ(fault({}, {x.all()}, {x.part(8, 16)}, {}).fault, GraphFault::read_after_write);
  EXPECT_EQ(fault({x.all()}, {}, {}, {x.part(8, 16)}).fault, GraphFault::write_after_read);
  const InvalidGraph writes = fault({}, {x.part(0, 12)}, {}, {x.part(8, 64)});
  EXPECT_EQ(writes.fault, GraphFault::write_after_write);
  EXPECT_THAT(writes.witness[0], HasSubstr("task 'first' of rank 0 writes bytes [8, 12)"));
  EXPECT_THAT(writes.witness[1], HasSubstr("task 'then' of rank 0 writes them"));
}

TEST(AccessProofs, AccessesThatMeetNoOther) {
  Graph graph(kinds(), {});
  const Tensor x = graph.tensor({.name = "x", .bytes = 64, .given = Given::always});
  const Tensor sum = graph.tensor({.name = "sum", .bytes = 64});
  for (uint32_t worker = 0; worker < 2; ++worker)
    graph.add<Nothing>({}, {.reads = {x.all()},
                            .writes = {},
                            .adds = {sum.all()},  // Sums commute.
                            .worker = worker});
  compile_all({graph});
  graph.add<Nothing>({}, {.name = "writes", .writes = {sum.part(0, 1)}, .worker = 0});
  graph.once();
  EXPECT_EQ(refused({graph}).fault, GraphFault::write_after_write);
}

TEST(AccessProofs, TheNextIterationOverwritesWhatIsStillRead) {
  Sketch s;
  s.add({.name = "writes", .writes = {s.x.all()}, .signals = {{s.a}}, .worker = 0});
  s.add({.name = "reads", .reads = {s.x.all()}, .waits = {{s.a}}, .signals = {{s.b}}, .worker = 1});
  const InvalidGraph error = refused({s.graph});
  EXPECT_EQ(error.fault, GraphFault::across_iterations);
  EXPECT_THAT(error.witness[1], HasSubstr("task 'writes' of rank 0 writes them in the next"));
  Graph once = s.graph;
  once.once();
  compile_all({once});
  s.graph.loop_on(s.b);
  compile_all({s.graph});
}

TEST(AccessProofs, APeerWritesWhatIsStillRead) {
  std::vector<Graph> graphs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Graph graph(kinds(), {.rank = rank, .ranks = 2});
    const Tensor x = graph.tensor({.name = "x", .bytes = 16, .given = Given::always});
    graph.once();
    graph.add<Nothing>({}, {.name = "reads", .reads = {x.all()}});
    if (rank == 1) graph.add<Nothing>({}, {.name = "pushes", .writes = {x.all().of(0)}});
    graphs.push_back(std::move(graph));
  }
  const InvalidGraph error = refused(graphs);
  EXPECT_EQ(error.fault, GraphFault::write_after_read);
  EXPECT_THAT(error.witness[1], HasSubstr("task 'pushes' of rank 1"));
}

TEST(AccessProofs, StreamsOfWhatATaskWrites) {
  Sketch s;
  s.graph.once();
  s.add({.name = "writes", .writes = {s.x.all()}, .signals = {{s.a}}});
  s.add({.name = "streams", .streams = {s.x.all()}, .waits = {{s.a}}});
  EXPECT_EQ(refused({s.graph}).fault, GraphFault::read_after_write);
}

/// One task writes a tensor, another on its own worker reads it, ordered by a carried event.
Graph handed_on(const TensorOptions& tensor, uint32_t reader) {
  Graph graph(kinds(), {});
  const Tensor x = graph.tensor(tensor);
  const Event come = graph.event({.name = "come", .carried = true});
  graph.add<Nothing>({}, {.name = "write", .writes = {x.all()}, .signals = {{come}}, .worker = 0});
  graph.add<Nothing>({}, {.name = "read", .reads = {x.all()}, .waits = {{come}}, .worker = reader});
  graph.once();
  return graph;
}

TEST(AccessProofs, ACarriedEventShowsNothingButWords) {
  const InvalidGraph error = refused({handed_on({.name = "x", .bytes = 64}, 1)});
  EXPECT_EQ(error.fault, GraphFault::read_after_write);
  EXPECT_THAT(error.witness.front(), HasSubstr("tensor 'x'"));
  compile_all({handed_on({.name = "x", .bytes = 64, .words = true}, 1)});
  compile_all({handed_on({.name = "x", .bytes = 64}, 0)});  // The worker's queue orders it.
}

TEST(AccessProofs, ACarriedEventIsNotCounted) {
  const Graph graph = handed_on({.name = "x", .bytes = 64, .words = true}, 1);
  const Program program = make_program(std::span(&graph, 1), 0, kTwoWorkers, compile_all({graph}));
  for (uint32_t position = 0; position < 2; ++position) {
    const auto* const packet = reinterpret_cast<const Packet*>(
        program.packets.data() + program.positions[position] * kPacketAlignment);
    EXPECT_EQ(packet->waits + packet->signals, 0u);
  }
}

TEST(AccessProofs, SchedulersWouldNotSeeACarriedEvent) {
  const Graph graph = handed_on({.name = "x", .bytes = 64, .words = true}, 1);
  const Shape scheduled{.workers = 2, .schedulers = 1, .task_slots = 2};
  const InvalidGraph error = refused({graph}, {}, scheduled);
  EXPECT_EQ(error.fault, GraphFault::trigger_count);
  EXPECT_THAT(error.fix, HasSubstr("static placement"));
}

}  // namespace
}  // namespace tokenyard::megakernel
