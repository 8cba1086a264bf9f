// Random graphs: every task checks that it runs in the order of its declared regions.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "megakernel/devices.hpp"
#include "megakernel/graph_runner.hpp"
#include "megakernel/touch_kernel.hpp"

namespace tokenyard::megakernel {
namespace {

/// Smaller on GPUs, where memory is allocated per tensor and large graphs are slow to build.
constexpr uint32_t kTasksHost = 20000, kTasksGpu = 400;

RandomGraphOptions draw(std::mt19937& random, uint32_t tasks_max) {
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  RandomGraphOptions options;
  options.ranks = 1u << below(3);
  // Log-uniform, from 2 on.
  const double exponent = std::log(2.0) + std::log(tasks_max / 2.0) * (below(1000) / 999.0);
  options.tasks = static_cast<uint32_t>(std::lround(std::exp(exponent)));
  options.cells = std::max(4u, options.tasks / 3);
  options.pacing = static_cast<Pacing>(below(3));
  options.dynamic_counts = below(2) == 0;
  options.streams = below(2) == 0;
  if (options.pacing == Pacing::gated && below(2) == 0) options.last_of_run = 1 + below(3);
  return options;
}

RunPlan plan_for(const RandomGraphOptions& options, std::mt19937& random) {
  RunPlan plan;
  plan.workers = 1 + random() % 6;
  // Ranks of pipelined graphs may be an iteration apart, which dynamic counts do not allow.
  if (random() % 3 == 0 && options.pacing != Pacing::pipelined) plan.schedulers = 1 + random() % 2;
  plan.task_slots = 1 + random() % 3;
  plan.haste = 1 + random() % 100000;
  plan.runs = options.pacing == Pacing::once ? std::vector<uint32_t>{1, 1, 1}
              : options.last_of_run > 0      ? std::vector<uint32_t>{0, 0}
                                             : std::vector<uint32_t>{1, 3};
  plan.expected_a_run = options.last_of_run;
  return plan;
}

constexpr uint32_t kGraphs = 200, kSeeds = 20;

struct Seeds {
  uint32_t begin = 0, end = kSeeds;
};

/// Runs as many of the graphs, each under all these seeds, as the budget allows.
void run_graphs(const std::string& device, uint32_t tasks_max, double budget_s,
                const Seeds& seeds = {}) {
  const TaskSet tasks = task_set<TouchTasks>(touch_kernel.entry);
  const auto begun = std::chrono::steady_clock::now();
  uint32_t runs = 0;
  uint64_t executed = 0;
  for (uint32_t seed = seeds.begin; seed < seeds.end; ++seed)
    for (uint32_t number = 0; number < kGraphs; ++number) {
      const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - begun;
      if (so_far.count() > budget_s || testing::Test::HasFailure()) {
        fmt::print("{} runs of {} graphs, {} tasks in the budget\n", runs, std::min(runs, kGraphs),
                   executed);
        return;
      }
      std::mt19937 drawing(number + 1);
      const RandomGraphOptions options = draw(drawing, tasks_max);
      const RandomGraph graph(options, drawing());
      std::mt19937 running(number * kSeeds + seed);
      const RunPlan plan = plan_for(options, running);
      const std::string what =
          fmt::format("graph {} of {} tasks on {} ranks, pacing {}, schedulers {}, seed {}", number,
                      options.tasks, options.ranks, static_cast<uint32_t>(options.pacing),
                      plan.schedulers, seed);
      run_threads(device, options.ranks,
                  {.timeout = std::chrono::seconds(device == "host" ? 120 : 15),
                   .arena_bytes = size_t{64} << 20},
                  [&](World& world) {
                    EXPECT_EQ(run_random_graph(world, graph, tasks, plan), "") << what;
                  });
      ++runs;
      executed += options.tasks * plan.runs.size();
    }
  fmt::print("{} graphs under {} seeds, {} tasks\n", kGraphs, seeds.end - seeds.begin, executed);
}

class RandomGraphs : public OnDevices {};
INSTANTIATE_ON_DEVICES(RandomGraphs);

TEST_P(RandomGraphs, RunInTheOrderOfTheirRegions) {
  run_graphs(GetParam(), on_host() ? kTasksHost : kTasksGpu, 10);
}

/// Runs all graphs, by hand: --gtest_also_run_disabled_tests.
TEST_P(RandomGraphs, DISABLED_AllOfThem) {
  run_graphs(GetParam(), on_host() ? kTasksHost : kTasksGpu, 1e9);
}

/// Runs the same in parts, for machines with many cores.
class RandomGraphsOfASeed : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(, RandomGraphsOfASeed, testing::Range(0u, kSeeds));

TEST_P(RandomGraphsOfASeed, DISABLED_AllOfThem) {
  run_graphs("host", kTasksHost, 1e9, {GetParam(), GetParam() + 1});
}

}  // namespace
}  // namespace tokenyard::megakernel
