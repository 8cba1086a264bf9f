// Suite `megakernel_hosts`: random graphs whose ranks are on several hosts. Tasks write to cells of
// other hosts' ranks through the simulated network, which lands bytes as late, and in as wrong an
// order, as a network may, and reads sources as late as it may. Every task checks that it runs in
// the declared order, on the declared values; in some runs a rank stops midway.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megakernel/graph_runner.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {
namespace {

using simulation::SeedRun;

TOKENYARD_DEFINE_HOST_MEGAKERNEL(touch_hosts_kernel, TouchTasks)

const TaskSet kTouchTasks = task_set<TouchTasks>(touch_hosts_kernel.entry);

struct Drawn {
  RandomGraphOptions graph;
  RunPlan plan;
  uint32_t graph_seed = 0;
};

Drawn draw(SeedRun& run) {
  simulation::Random& random = run.random;
  Drawn drawn;
  RandomGraphOptions& graph = drawn.graph;
  graph.pacing = static_cast<Pacing>(run.option("pacing", random.below(3)));
  const uint32_t hosts = random.between(2, random.chance(256) ? 3 : 2);
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t left = random.between(1, hosts > 2 ? 1 : 2); left > 0; --left)
      graph.host_of.push_back(host);
  run.option("host_of", fmt::format("{}", graph.host_of));
  graph.ranks = static_cast<uint32_t>(graph.host_of.size());
  graph.tasks = run.option("tasks", random.between(2, random.chance(128) ? 20 : 8));
  graph.cells = run.option("cells", random.between(1, 6));
  graph.dynamic_counts = run.option("dynamic", random.chance(128));
  graph.streams = run.option("streams", random.chance(256));
  drawn.plan.workers = run.option("workers", random.between(1, 3));
  drawn.plan.compute_warps = run.option("compute_warps", random.chance(128) ? 2 : 1);
  drawn.plan.ring_units = random.between(1, 3);
  drawn.plan.in_flight = random.between(1, 2);
  drawn.plan.haste = static_cast<uint32_t>(random.next());
  drawn.plan.runs = graph.pacing == Pacing::once ? std::vector<uint32_t>{1, 1, 1}
                                                 : std::vector<uint32_t>{random.between(1, 3), 2};
  drawn.graph_seed = static_cast<uint32_t>(random.next());
  return drawn;
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const RandomGraph graph(drawn.graph, drawn.graph_seed);
  const bool may_stall = run.random.chance(64);
  simulated::Options options{
      .ranks = drawn.graph.ranks,
      .host_of = drawn.graph.host_of,
      .arena_bytes = size_t{1} << 18,
      .timeout = std::chrono::milliseconds(400),
      .card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000),
               .stall_ns_max = may_stall ? run.option("stall", uint32_t{5'000'000}) : 0,
               .first = run.option("first", (run.random.below(2) << 16) - run.random.below(12))},
      .queues_per_peer = 1};
  if (run.random.chance(128)) {
    // The stores land: other fates also lose those that an applied signal has released.
    options.stop = simulation::RankStop{
        .rank = run.option("stops", run.random.below(options.ranks)),
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(8, 15))),
        .fate = simulation::InFlight::land};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  if (graph.puts() > 0) run.reach("puts between hosts");
  const simulated::Result result = simulated::run(run, options, [&](World& world) {
    const std::string disorder = run_random_graph(world, graph, kTouchTasks, drawn.plan);
    if (!disorder.empty()) throw simulation::SuiteFailure(disorder);
  });
  result.require_clean_after(options.stop);
}

const bool registered = simulation::add_suite(
    {.name = "megakernel_hosts",
     .what = "graphs of tasks whose ranks are on several hosts, whatever the network does",
     .run = run_suite,
     .reaches = {{"puts between hosts", 500}},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::megakernel
