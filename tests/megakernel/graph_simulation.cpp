// Suite `megakernel`: random graphs on simulated ranks, under weak memory, late stores and
// adversarial schedules. Every task checks that it runs in the declared order; in some runs a rank
// stops midway.
#include "megakernel/graph_runner.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {
namespace {

using simulation::SeedRun;

TOKENYARD_DEFINE_HOST_MEGAKERNEL(touch_kernel, TouchTasks)

const TaskSet kTouchTasks = task_set<TouchTasks>(touch_kernel.entry);

struct Drawn {
  RandomGraphOptions graph;
  RunPlan plan;
  uint32_t graph_seed = 0;
  bool discord = false;  ///< whether the last rank asks for a different number of iterations
};

Drawn draw(SeedRun& run) {
  simulation::Random& random = run.random;
  Drawn drawn;
  RandomGraphOptions& graph = drawn.graph;
  graph.pacing =
      static_cast<Pacing>(run.option("pacing", random.chance(128) ? 3 : random.below(3)));
  const bool scheduled = graph.pacing == Pacing::scheduled;
  graph.ranks = run.option("ranks", scheduled ? 1u : 1u << random.below(3));
  graph.tasks = run.option("tasks", random.between(2, random.chance(128) ? 24 : 10));
  graph.cells = run.option("cells", random.between(1, 6));
  graph.dynamic_counts = run.option("dynamic", random.chance(256));
  graph.streams = run.option("streams", random.chance(512));
  if (graph.pacing == Pacing::gated && random.chance(768))
    graph.last_of_run = run.option("last_of_run", random.between(1, 3));
  drawn.plan.workers = run.option("workers", random.between(1, 3));
  drawn.plan.compute_warps = run.option("compute_warps", random.chance(128) ? 2 : 1);
  if (scheduled || (graph.pacing != Pacing::pipelined && random.chance(512)))
    drawn.plan.schedulers = run.option("schedulers", random.between(1, 2));
  else
    graph.shares_anywhere = run.option("shares_anywhere", random.chance(512));
  drawn.plan.task_slots = random.between(1, 2);
  drawn.plan.ring_units = random.between(1, 3);
  drawn.plan.in_flight = random.between(1, 2);
  drawn.plan.haste = static_cast<uint32_t>(random.next());
  drawn.plan.expected_a_run = graph.last_of_run;
  if (graph.pacing == Pacing::once)
    drawn.plan.runs = {1, 1};
  else if (graph.last_of_run > 0)
    drawn.plan.runs = {0};
  else
    drawn.plan.runs = {random.between(scheduled ? 2 : 1, 3), 1};
  // Drawn apart, so that other draws are the same without it.
  if (simulation::Random late(run.seed ^ 0x2f5); late.chance(200))
    drawn.plan.runs_before = run.option("runs_before", UINT32_MAX - uint64_t{late.below(3)});
  drawn.graph_seed = static_cast<uint32_t>(random.next());
  if (drawn.plan.schedulers > 0 && drawn.graph_seed % 2 == 1)
    graph.pinned = run.option("pinned", drawn.plan.workers);
  drawn.discord =
      run.option("discord", graph.ranks > 1 && graph.pacing == Pacing::gated && random.chance(64));
  graph.strays = run.option("strays", !drawn.discord && random.chance(32));
  return drawn;
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const RandomGraph graph(drawn.graph, drawn.graph_seed);
  simulated::Options options{.ranks = drawn.graph.ranks, .arena_bytes = size_t{1} << 18};
  if (options.ranks > 1 && !drawn.discord && !drawn.graph.strays && run.random.chance(128)) {
    options.stop = simulation::RankStop{
        .rank = run.option("stops", run.random.below(options.ranks)),
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(8, 15))),
        .fate = static_cast<simulation::InFlight>(run.random.below(3))};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const simulated::Result result = simulated::run(run, options, [&](World& world) {
    RunPlan plan = drawn.plan;
    if (drawn.discord && world.rank() + 1 == world.size()) plan.runs = {4};
    const std::string disorder = run_random_graph(world, graph, kTouchTasks, plan);
    if (!disorder.empty()) throw simulation::SuiteFailure(disorder);
  });
  if (drawn.graph.strays && graph.has_straying()) {
    run.require(result.failure.find("undeclared access") != std::string::npos,
                "a task wrote a cell that it does not declare, and it was not reported: {}",
                result.failure);
    return;
  }
  if (!drawn.discord) return result.require_clean_after(options.stop);
  std::vector<uint32_t> all;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    const auto error = result.expect<InvalidArgument>(rank);
    run.require(error.argument == "iterations of a run", "rank {}: {}", rank, error.what());
    all.push_back(rank);
  }
  result.require_clean(all);
}

using simulation::Fault;

/// For Deadline::fail, which publishes its report, and for the kernel's word that it has started.
constexpr const char* kOwnHost =
    "is between a rank's kernel and its own host code, which is not instrumented";
constexpr const char* kNoneAhead = "is for tasks that load ahead, which the suite decoder has";
constexpr const char* kNotFed = "is for fed runs, whose outputs host code reads";
constexpr const char* kOnlyReported = "is the counter of a follower, which only reports read";
constexpr const char* kSlotsStores =
    "orders two stores to a queue's slot, which the simulator keeps in execution order";
constexpr const char* kOnlySaves = "saves other threads a load of the queue's own word";
constexpr const char* kOnlyStops = "lets loaders stop, and no data depends on it";

const bool registered = simulation::add_suite(
    {.name = "megakernel",
     .what = "graphs of tasks on several ranks, in order under adversarial delivery",
     .run = run_suite,
     .explained = {{Fault::release_made_relaxed, "memory.hpp:51", kOwnHost},
                   {Fault::sys_made_gpu, "memory.hpp:51", kOwnHost},
                   {Fault::sys_made_gpu, "worker_kernel.hpp:68", kOwnHost},
                   {Fault::store_dropped, "worker_kernel.hpp:68", kOwnHost},
                   {Fault::release_made_relaxed, "worker_kernel.hpp:196", kNoneAhead},
                   {Fault::store_dropped, "worker_kernel.hpp:196", kNoneAhead},
                   {Fault::store_dropped, "worker_kernel.hpp:285", kOnlyReported},
                   {Fault::store_dropped, "worker_kernel.hpp:295", kNotFed},
                   {Fault::release_made_relaxed, "worker_kernel.hpp:295", kNotFed},
                   {Fault::acquire_made_relaxed, "queue.hpp:53", kSlotsStores},
                   {Fault::release_made_relaxed, "queue.hpp:71", kSlotsStores},
                   {Fault::acquire_made_relaxed, "publish_kernel.hpp:83", kSlotsStores},
                   {Fault::release_made_relaxed, "publish_kernel.hpp:87", kSlotsStores},
                   {Fault::store_dropped, "publish_kernel.hpp:87", kOnlySaves},
                   {Fault::release_made_relaxed, "worker_kernel.hpp:335", kOnlyStops},
                   {Fault::acquire_made_relaxed, "waiting_kernel.hpp:91", kOnlyStops}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::megakernel
