/// Runs a random graph on the ranks of a world, and reports order violations.
#pragma once

#include <fmt/format.h>

#include "megakernel/later_run.hpp"
#include "megakernel/random_graph.hpp"

namespace tokenyard::megakernel {

/// Parameters of the runs of one graph.
struct RunPlan {
  std::vector<uint32_t> runs = {1};  ///< iterations of each run; 0: the loop ends it
  uint32_t expected_a_run = 0;       ///< iterations of each run that the loop ends
  uint32_t workers = 2, compute_warps = 1;
  uint32_t schedulers = 0, task_slots = 1;
  uint32_t ring_units = 3, in_flight = 2;
  uint32_t haste = 0;
  uint64_t runs_before = 0;  ///< so many runs have ended, without iterations
};

/// Returns a sentence on the first order violation; empty if there is none.
inline std::string disorder_of(TensorMemory& memory, const Disorder* disorder) {
  Disorder seen{};
  memory.read(TensorView::bytes_at(&seen, sizeof(seen)),
              ConstTensorView::bytes_at(disorder, sizeof(seen)));
  if (seen.count == 0) return "";
  return fmt::format("{} words out of order, the first in task {}: {:#x} instead of {:#x}",
                     seen.count, seen.task, seen.seen, seen.expected);
}

/// Runs one rank's part. Returns a sentence on the first violation; empty if there is none.
inline std::string run_random_graph(World& world, const RandomGraph& random, const TaskSet& set,
                                    const RunPlan& plan) {
  TensorMemory memory(world);
  const std::vector<TensorView> cells = memory.shared(random.cell_bytes());
  auto* const disorder = memory.local(sizeof(Disorder)).as<Disorder>();
  const Graph graph = random.on(world.rank(), set, memory, cells, disorder, plan.haste);
  Megakernel kernel(world, graph,
                    {.workers = plan.workers,
                     .compute_warps = plan.compute_warps,
                     .unit_bytes = 128,
                     .ring_units = plan.ring_units,
                     .in_flight = plan.in_flight,
                     .schedulers = plan.schedulers,
                     .task_slots = plan.task_slots});
  if (plan.runs_before > 0) begin_after(world, kernel, plan.runs_before);
  for (const uint32_t iterations : plan.runs) {
    const uint32_t expected = iterations != 0 ? iterations : plan.expected_a_run;
    try {
      const uint32_t ran = kernel.run(iterations);
      if (ran != expected) return fmt::format("{} iterations instead of {}", ran, expected);
    } catch (const Error&) {
      // A failed run skips tasks, but runs none too early.
      const std::string sentence = disorder_of(memory, disorder);
      if (sentence.empty()) throw;
      return "a run that failed: " + sentence;
    }
  }
  std::string sentence = disorder_of(memory, disorder);
  world.barrier("all ranks have looked");  // No cells are freed while other ranks still run.
  return sentence;
}

}  // namespace tokenyard::megakernel
