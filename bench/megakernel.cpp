// Measures a hop from one task to the next inside a running megakernel: one to one, grid-wide,
// through dynamic queues, and to a peer and back. Tasks are empty; the order of their records is
// checked before anything is timed.
//
//   ./run bench megakernel                          # on a GPU; two GPUs for the hop to a peer
//   ./run bench megakernel --device host --smoke    # a smoke test
//
// Stages form a loop. A run of several iterations takes longer than a run of one by exactly their
// hops: both include the launch and the first execution of code.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>

#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/tasks/builtin.hpp"
#include "megakernel/tasks/exchange.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::bench {
namespace {

namespace mk = tokenyard::megakernel;

struct Settings {
  std::string device = "cuda", output;
  uint32_t ranks = 1, hops = 1000, runs = 20;
};

/// A case: stages of tasks, each of which waits for the whole previous stage.
struct Case {
  std::string name;
  uint32_t width;        ///< tasks per stage
  uint32_t schedulers;   ///< 0: static placement
  bool to_peer = false;  ///< stages alternate between the ranks
};

/// An empty task.
mk::CopyToPeer::Args nothing() {
  return {.from = nullptr, .to = {}, .words = 0};
}

mk::Graph stages(const World& world, const Case& of, uint32_t count, uint32_t workers) {
  mk::Graph graph(mk::builtin_tasks(), {.rank = world.rank(), .ranks = world.size()});
  std::vector<mk::Event> events;
  for (uint32_t stage = 0; stage < count; ++stage)
    events.push_back(graph.event({.name = fmt::format("stage {}", stage)}));
  const auto owner = [&](uint32_t stage) { return of.to_peer ? stage % world.size() : 0; };
  const mk::Event round = graph.event({.name = "round"});
  for (uint32_t stage = 0; stage < count; ++stage) {
    if (owner(stage) != world.rank()) continue;
    for (uint32_t i = 0; i < of.width; ++i) {
      mk::TaskOptions options{.name = fmt::format("task {} {}", stage, i)};
      if (stage > 0) options.waits = {{events[stage - 1], 0}};
      if (stage + 1 < count)
        options.signals = {{events[stage], owner(stage + 1)}};
      else
        for (uint32_t rank = 0; rank < world.size(); ++rank)
          options.signals.push_back({round, rank});
      // A hop goes to another worker, unless a scheduler decides.
      if (of.schedulers == 0) options.worker = (stage + i) % workers;
      graph.add<mk::CopyToPeer>(nothing(), std::move(options));
    }
  }
  graph.loop_on(round);
  return graph;
}

/// Throws if a task of the trace began before a task of its rank that it waits for.
void check_order(const mk::Trace& trace) {
  std::vector<uint64_t> begun(trace.tasks.size(), 0);
  for (const mk::TraceSpan& span : trace.spans) begun[span.task] = span.begun_ns;
  for (const mk::TraceSpan& span : trace.spans)
    for (const mk::TraceWait& wait : trace.tasks[span.task].waits)
      for (const mk::TraceSignal& before : trace.events[wait.event].signals)
        if (before.rank == trace.rank && wait.lag == 0 && begun[before.task] > span.begun_ns)
          throw InternalError(fmt::format("'{}' began before '{}'", trace.tasks[span.task].name,
                                          trace.tasks[before.task].name));
}

/// Returns median and spread of a hop in us. Collective.
Spread measure(World& world, const Case& of, const Settings& settings) {
  const bool host = accelerator_of(world).kind() != AcceleratorKind::gpu;
  const uint32_t workers =
      host ? 4 : accelerator_of(world).capacity().multiprocessors - of.schedulers;
  const mk::Graph graph = stages(world, of, settings.hops, workers);
  mk::MegakernelOptions options{.workers = workers, .schedulers = of.schedulers};
  {
    options.trace_records = 2 * settings.hops * of.width / workers + 2 * settings.hops;
    mk::Megakernel traced(world, graph, options);
    traced.run(1);
    check_order(traced.trace());
    options.trace_records = 0;
  }
  mk::Megakernel kernel(world, graph, options);
  kernel.run(1);  // The first run loads the kernel.
  constexpr uint32_t kRounds = 4;
  std::vector<double> samples;
  for (uint32_t run = 0; run < settings.runs; ++run) {
    kernel.run(1);
    const double one_ms = kernel.last_run_ms();
    kernel.run(1 + kRounds);
    samples.push_back((kernel.last_run_ms() - one_ms) * 1e3 / (kRounds * settings.hops));
  }
  return spread_of(std::move(samples));
}

void run(const Settings& settings) {
  auto worlds = worlds_apart(settings.ranks, settings.device);
  const bool host = settings.device == "host";
  const uint32_t all = host ? 4 : accelerator_of(*worlds[0]).capacity().multiprocessors;
  std::vector<Case> cases = {{"hop one to one", 1, 0},
                             {"hop grid-wide", all, 0},
                             {"hop one to one, dynamic", 1, 1},
                             {"hop of pairs, dynamic", 2, 1},
                             {"hop grid-wide, dynamic", all - (host ? 0 : 1), 1}};
  if (settings.ranks > 1) cases = {{"hop to a peer", 1, 0, true}};
  Report report("megakernel", *worlds[0]);
  on_each_rank(worlds, [&](World& world) {
    for (const Case& of : cases) {
      const Spread spread = measure(world, of, settings);
      if (world.rank() != 0) continue;
      report.add({.name = of.name,
                  .gpus = host ? 0 : settings.ranks,
                  .ranks = settings.ranks,
                  .tokens = settings.hops,
                  .hidden = 0,
                  .sms = all,
                  .ours = spread,
                  .floor = 0});
    }
  });
  report.finish(settings.output);
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = asks_for_smoke(argc, argv);
  if (smoke) settings = {.device = "host", .output = {}, .ranks = 1, .hops = 20, .runs = 2};
  CLI::App app("Measures a hop between tasks of a running megakernel", "./run bench megakernel");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", settings.ranks, "ranks; more than one for the hop to a peer")
      ->check(in_range(1, 8));
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--hops", settings.hops, "hops per run")->check(in_range(1, 10000));
  app.add_option("--runs", settings.runs, "measured runs")->check(in_range(1, 10000));
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/megakernel.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  return exit_of_run([&] { run(settings); });
}
