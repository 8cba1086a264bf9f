/// Times that calls have waited, in the simulator's time.
#include <gtest/gtest.h>

#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

/// The words of a call's waits have 32 bits: of nanoseconds, they would hold four seconds.
TEST(Waits, OfManySecondsAreCountedInFull) {
  constexpr std::chrono::seconds kLate{20};
  const ExchangeCase of{.shape = {.ranks = 2, .experts = 2, .hidden = 8, .topk = 1},
                        .tokens = {1, 1}};
  simulation::Trace trace;
  simulation::SeedRun seed(7, trace, nullptr);
  double waited_s = 0;
  simulated::run(seed, {.ranks = 2, .timeout = std::chrono::minutes(10)}, [&](World& world) {
    ExpertParallel exchange(world, of.options());
    Accelerator& accelerator = accelerator_of(world);
    if (world.rank() == 1) accelerator.wait_until(accelerator.now() + kLate, [] { return false; });
    const TokensOnDevice tokens(accelerator, of.draw()[world.rank()], true);
    exchange.dispatch(tokens.input());
    exchange.wait();
    if (world.rank() == 0) waited_s = exchange.metrics().wait_seconds_by_peer[1];
  }).require_clean();
  EXPECT_GE(waited_s, 19);
}

}  // namespace
}  // namespace tokenyard::test
