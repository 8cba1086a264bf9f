// Suite `megakernel_pinned`: events that start tasks pinned to one worker and tasks for any worker
// together, while that worker is busy. When it looks for work, its slot of the rank's queue and its
// own queue are both filled, and its view of their events' counters, which another rank signals,
// may be outdated.
#include "megakernel/graph_runner.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {
namespace {

using simulation::SeedRun;

TOKENYARD_DEFINE_HOST_MEGAKERNEL(pinned_touch_kernel, TouchTasks)

const TaskSet kTouchTasks = task_set<TouchTasks>(pinned_touch_kernel.entry);

/// The last rank writes one cell per event, and the event's tasks on rank 0 read it.
struct Drawn {
  uint32_t ranks, workers, schedulers, events, of_any, of_one, haste, runs;
};

Drawn draw(SeedRun& run) {
  simulation::Random& random = run.random;
  return {.ranks = run.option("ranks", random.between(1, 2)),
          .workers = run.option("workers", random.between(1, 2)),
          .schedulers = run.option("schedulers", random.between(1, 2)),
          .events = run.option("events", random.between(1, 2)),
          .of_any = run.option("of_any", random.between(1, 2)),
          .of_one = run.option("of_one", random.between(1, 2)),
          .haste = static_cast<uint32_t>(random.next()),
          .runs = run.option("runs", random.between(1, 3))};
}

/// Runs one rank's part. Returns a sentence on the first violation; empty if there is none.
std::string run_rank(World& world, const Drawn& drawn) {
  TensorMemory memory(world);
  const size_t bytes = drawn.events * kCellWords * sizeof(uint32_t);
  const std::vector<TensorView> all = memory.shared(bytes);
  auto* const cells = all[0].as<uint32_t>();
  auto* const disorder = memory.local(sizeof(Disorder)).as<Disorder>();
  Graph graph(kTouchTasks, {.rank = world.rank(), .ranks = world.size()});
  const Tensor tensor = graph.tensor({.name = "cells",
                                      .bytes = bytes,
                                      .given = Given::always,
                                      .places = {all.begin(), all.end()}});
  graph.once();
  std::mt19937 lingering(drawn.haste);
  const auto add = [&](uint32_t writer, const CellRead* read, const Peer<uint32_t>* write,
                       TaskOptions options) {
    graph.add<Touch>({.reads = read,
                      .writes = write,
                      .read_count = read != nullptr,
                      .write_count = write != nullptr,
                      .writer = writer,
                      .haste = static_cast<uint32_t>(lingering()),
                      .disorder = disorder,
                      .event = {},
                      .event_rank = 0,
                      .share = 0,
                      .shares = 0,
                      .stream = nullptr,
                      .units = 0,
                      .last_of_run = 0},
                     std::move(options));
  };
  const auto place = [&](const auto& value) {
    const TensorView there = memory.local(sizeof(value));
    memory.write(there, ConstTensorView::bytes_at(&value, sizeof(value)));
    return there.as<std::remove_cvref_t<decltype(value)>>();
  };
  for (uint32_t i = 0; i < drawn.events; ++i) {
    const Event event = graph.event({.name = "event"});
    const Peer<uint32_t> cell(cells + i * kCellWords);
    const Region region = tensor.part(i * kCellWords * 4, (i + 1) * kCellWords * 4).of(0);
    if (world.rank() + 1 == world.size())
      add(i, nullptr, place(cell), {.name = "writes", .writes = {region}, .signals = {{event, 0}}});
    if (world.rank() != 0) continue;
    add(drawn.events, nullptr, nullptr, {.name = "keeps a worker busy"});
    for (uint32_t reader = 0; reader < drawn.of_any + drawn.of_one; ++reader) {
      TaskOptions options{.name = "reads", .reads = {region}, .waits = {{event}}};
      if (reader >= drawn.of_any) options.worker = 0;
      add(drawn.events, place(CellRead{cell, i, 0, 0, 0}), nullptr, std::move(options));
    }
  }
  Megakernel kernel(world, graph,
                    {.workers = drawn.workers, .compute_warps = 1, .schedulers = drawn.schedulers});
  for (uint32_t i = 0; i < drawn.runs; ++i) kernel.run(1);
  std::string sentence = disorder_of(memory, disorder);
  world.barrier(
      "all ranks have looked");  // Rank 0's cells are not freed while other ranks still run.
  return sentence;
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  simulated::run(run, {.ranks = drawn.ranks, .arena_bytes = size_t{1} << 18}, [&](World& world) {
    const std::string disorder = run_rank(world, drawn);
    if (!disorder.empty()) throw simulation::SuiteFailure(disorder);
  }).require_clean();
}

const bool registered =
    simulation::add_suite({.name = "megakernel_pinned",
                           .what = "tasks pinned to a busy worker next to tasks for any worker",
                           .run = run_suite,
                           .seeds = 1000});

}  // namespace
}  // namespace tokenyard::megakernel
