// Suite `litmus`: PTX allows every outcome that the simulated memory shows; the memory shows every
// weak outcome that PTX allows, except load buffering, which no machine can show that runs threads
// in program order; and races are reported exactly for programs that have some.

#include <map>

#include "simulation/litmus_machine.hpp"
#include "simulation/litmus_shapes.hpp"
#include "simulation/ptx_axioms.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::litmus {
namespace {

using simulation::SeedRun;

/// Enough runs not to miss an outcome that one run in a thousand shows.
constexpr uint32_t kRunsMax = 30'000;
constexpr uint32_t kRunsMin = 300;

void run_suite(SeedRun& run) {
  // Consecutive seeds cycle through the published shapes and one random program, for which only the
  // shown outcomes are checked.
  const size_t turn = run.seed % (shapes().size() + 1);
  const bool published = turn < shapes().size();
  const Program program = fill(published ? shapes()[turn] : invent(run.random), run.random);
  run.option("program", text(program));
  const Verdict verdict = judge(program);

  std::map<Outcome, uint32_t> shown;
  uint32_t runs = 0, raced = 0;
  while (runs < kRunsMax && (runs < kRunsMin || shown.size() < verdict.reachable.size())) {
    const Shown one = litmus::run(program, run.random.next(), run.trace);
    ++runs;
    raced += one.raced;
    if (++shown[one.outcome] == 1)
      run.require(verdict.allowed.contains(one.outcome), "the memory shows it, PTX forbids it: {}",
                  text(program, one.outcome));
    if (!published && runs >= kRunsMin) break;
  }
  run.require(!verdict.never_races || raced == 0, "a race is reported, but there is none");
  run.require(!verdict.always_races || raced == runs, "{} of {} runs report no race", runs - raced,
              runs);
  if (!published || !verdict.never_races) return;
  for (const Outcome& outcome : verdict.reachable)
    run.require(shown.contains(outcome), "PTX allows it, but {} runs do not show it: {}", runs,
                text(program, outcome));
}

const bool registered = simulation::add_suite(
    {.name = "litmus",
     .what = "litmus tests against the axioms of PTX, with every mix of order, scope and place",
     .run = run_suite,
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::litmus
