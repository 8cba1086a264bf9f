/// Runs the contract of every fabric under the simulator's memory model.
#include "fabric/contract.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::testing {
namespace {

void contract(simulation::SeedRun& seed) {
  const auto ranks = seed.option("ranks", static_cast<uint32_t>(2 + seed.random.below(3)));
  const auto clause = seed.option("clause", static_cast<uint32_t>(seed.random.below(5)));
  simulated::run(seed, {.ranks = ranks}, [&](World& world) {
    switch (clause) {
      case 0:
        return names_the_absent(world);
      case 1:
        return can_be_rebuilt(world);
      case 2:
        return tells_who_is_reached(world);
      default:
        return keeps_order(world, 3);
    }
  }).require_clean();
}

using simulation::Fault;

constexpr const char* kReport =
    "polls the abort flag or writes the report, which the host reads only after the kernel";
constexpr const char* kClaim =
    "claims the report for the wait that failed first; without it a later one reports, as truly";
const bool contract_registered =
    simulation::add_suite({.name = "fabric",
                           .what = "what a world guarantees to kernels",
                           .run = contract,
                           .explained = {{Fault::release_made_relaxed, "memory.hpp:51", kReport},
                                         {Fault::sys_made_gpu, "wait.hpp:102", kReport},
                                         {Fault::sys_made_gpu, "memory.hpp:51", kReport},
                                         {Fault::store_dropped, "memory.hpp:92", kClaim}}});

}  // namespace
}  // namespace tokenyard::testing
