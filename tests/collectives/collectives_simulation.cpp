// Suite `collectives`: the membership protocol and the commit of operations under all the failures
// that a seed draws.
#include "collectives/simulated/disaster.hpp"
#include "collectives/simulated/drill.hpp"
#include "collectives/simulated/with_engine.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::collectives::simulated {
namespace {

const bool registered = simulation::add_suite(
    {.name = "collectives",
     .what = "ranks die, hang, part, leave and join; survivors agree on what has happened",
     .run = [](simulation::SeedRun& run) { Disaster(run, {}).happen(); },
     .seeds = 20000});
const bool engine_registered = simulation::add_suite(
    {.name = "engine",
     .what = "the same with the real engine and its algorithms over simulated channels",
     .run = [](simulation::SeedRun& run) { Disaster(run, {}, with_engine()).happen(); },
     .seeds = 4000});
const bool recovery_registered = simulation::add_suite(
    {.name = "recovery",
     .what = "survivors go on by calls of their own, late, in any order; every call must end",
     .run = [](simulation::SeedRun& run) { Drill(run).happen(); },
     .seeds = 4000});

}  // namespace
}  // namespace tokenyard::collectives::simulated
